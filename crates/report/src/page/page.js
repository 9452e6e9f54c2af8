'use strict';
// What a reader does with the page: chooses frames, switches lines, looks at values, saves figures. Everything is drawn
// already; texts of runs are only ever set as text.
(() => {
  const shown = new Map();   // lines that a reader switched on or off, by figure and name
  const chosen = new Map();  // frames that a reader chose, by figure
  const folded = new Map();  // lists that a reader opened or closed, by id

  const element = (name, attributes = {}, ...children) => {
    const made = name === 'svg' || name === 'path' ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const number = value => Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(+value.toFixed(2));
  const display = (part, visible) => visible ? part.removeAttribute('display') : part.setAttribute('display', 'none');
  const isShown = part => part.getAttribute('display') !== 'none';

  // ---------------------------------------------------------------- saving
  const download = (blob, name) => element('a', { href: URL.createObjectURL(blob), download: name }).click();
  const save = (frame, svg, kind) => {
    const copy = svg.cloneNode(true), [width, height] = ['width', 'height'].map(side => +svg.getAttribute(side));
    const keys = [...copy.querySelectorAll('[data-key]')], count = copy.querySelector('.count');
    const visible = keys.filter(isShown);
    if (count) count.textContent = visible.length < keys.length ? `${visible.length} of ${keys.length} lines shown` : '';
    // The legend closes its gaps.
    const places = keys.map(key => key.getAttribute('transform'));
    visible.forEach((key, place) => key.setAttribute('transform', places[place]));
    copy.querySelectorAll('.cursor, [display=none]').forEach(part => part.remove());
    copy.setAttribute('viewBox', `0 0 ${width} ${height}`);
    for (const name of ['tabindex', 'style']) copy.removeAttribute(name);
    const blob = new Blob([new XMLSerializer().serializeToString(copy)], { type: 'image/svg+xml' });
    const name = `${frame.closest('figure').id}${frame.dataset.name && ` ${frame.dataset.name}`}.${kind}`;
    if (kind === 'svg') return download(blob, name);
    const canvas = element('canvas', { width: 2 * width, height: 2 * height });
    const image = element('img', { onload: () => {
      canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(picture => download(picture, name));
    } });
    image.src = URL.createObjectURL(blob);
  };

  // ---------------------------------------------------------------- values
  const split = (text, between = ' ') => text === undefined ? [] : text.split(between);
  // Values of all lines at the place of the point that is nearest to `x`, or `step` points further.
  const lineTip = svg => {
    const lines = [...svg.querySelectorAll('[data-line][data-y]')].map(group => {
      const line = group.querySelector('polyline'), { x, y, spread } = group.dataset;
      return {
        group, name: group.dataset.line, colour: line.getAttribute('stroke'), at: [...line.points].map(point => point.x),
        x: split(x).map(Number), y: split(y).map(Number), spread: split(spread).map(Number),
      };
    });
    const nearest = (line, x) => line.at.reduce((best, at, place) => Math.abs(at - x) < Math.abs(line.at[best] - x) ? place : best, 0);
    return (x, step = 0) => {
      const visible = lines.filter(line => isShown(line.group));
      if (!visible.length) return null;
      const distance = line => Math.abs(line.at[nearest(line, x)] - x);
      const first = visible.reduce((best, line) => distance(line) < distance(best) ? line : best);
      const place = Math.min(first.at.length - 1, Math.max(0, nearest(first, x) + step)), at = first.at[place];
      const rows = visible.flatMap(line => {
        const place = nearest(line, at), spread = line.spread[place];
        return Math.abs(line.at[place] - at) > 3 ? [] : [[line.colour, `${line.name}: ${number(line.y[place])}${spread > 0 ? ` ± ${number(spread)}` : ''}`]];
      });
      return { at, head: `${svg.dataset.x} ${number(first.x[place])}`, rows };
    };
  };
  const cellTip = cells => {
    const { x, y, label } = cells.dataset, columns = split(cells.dataset.columns, '\n'), rows = split(cells.dataset.rows, '\n');
    const values = split(cells.dataset.values, '\n').map(row => row.split(' ').map(Number));
    return (column, row) => rows[row] === undefined || columns[column] === undefined ? null
      : { head: `${y}: ${rows[row]}`, rows: [[null, `${x}: ${columns[column]}`], [null, `${number(values[row][column])} (${label})`]] };
  };
  const values = (frame, svg) => {
    const tip = element('div', { class: 'tip', hidden: '' }), cursor = element('path', { class: 'cursor' });
    const cells = svg.querySelector('.cells'), lines = lineTip(svg), cell = cells && cellTip(cells);
    const [, top, , height] = split(svg.dataset.plot).map(Number);
    let last = null;
    const show = (found, x, y) => {
      tip.hidden = !found;
      if (!found) return cursor.remove();
      tip.replaceChildren(element('strong', {}, found.head), ...found.rows.map(([colour, text]) =>
        element('div', {}, ...(colour ? [element('i', { style: `background:${colour}` })] : []), text)));
      if (found.at !== undefined) {
        last = found.at;
        cursor.setAttribute('d', `M${last} ${top + 10}V${top + height - 48}`);
        svg.append(cursor);
      }
      const left = x > frame.clientWidth / 2 ? x - tip.offsetWidth - 16 : x + 16;
      tip.style.left = `${Math.max(0, Math.min(left, frame.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${y}px`;
    };
    const within = (part, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(part.getScreenCTM().inverse());
    svg.addEventListener('pointermove', event => {
      const box = frame.getBoundingClientRect(), place = within(cells ?? svg, event);
      show(cells ? cell(Math.floor(place.x), Math.floor(place.y)) : lines(place.x), event.clientX - box.left, event.clientY - box.top + 16);
    });
    svg.addEventListener('pointerleave', () => show(null));
    svg.addEventListener('blur', () => show(null));
    // Arrow keys move from point to point, as the pointer does.
    svg.addEventListener('keydown', event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || cells) return;
      event.preventDefault();
      const found = last === null ? lines(0) : lines(last, step), box = svg.getBoundingClientRect();
      if (found) show(found, found.at * svg.getScreenCTM().a, box.top - frame.getBoundingClientRect().top + 40);
    });
    frame.append(tip);
  };

  // ---------------------------------------------------------------- figures
  const legend = (figure, svg) => [...svg.querySelectorAll('[data-key]')].map(key => {
    const name = key.dataset.key, id = `${figure.id} ${name}`;
    const parts = [key, ...[...svg.querySelectorAll('[data-line]')].filter(part => part.dataset.line === name)];
    const box = element('input', { type: 'checkbox', 'data-focus': id, onchange: () => {
      shown.set(id, box.checked);
      parts.forEach(part => display(part, box.checked));
    } });
    if (shown.has(id)) parts.forEach(part => display(part, shown.get(id)));
    box.checked = isShown(key);
    const sample = element('svg', { viewBox: '0 -8 28 16', 'aria-hidden': 'true' }, ...key.cloneNode(true).children);
    sample.querySelector('text').remove();
    return element('label', {}, box, sample, name);
  });
  // A frame gets its controls when it is first shown.
  const prepare = (figure, frame) => {
    if (frame.querySelector('.scroll')) return;
    const svg = frame.querySelector('svg'), { plot } = svg.dataset;
    const [, , width, height] = split(plot);
    svg.setAttribute('viewBox', plot);
    Object.assign(svg.style, { aspectRatio: `${width} / ${height}`, minWidth: `${Math.round(0.55 * width)}px`, maxWidth: `${1.5 * width}px` });
    svg.setAttribute('tabindex', '0');
    const entries = legend(figure, svg);
    if (entries.length) frame.append(element('fieldset', { class: 'legend', 'aria-label': 'Lines' }, ...entries));
    frame.append(element('div', { class: 'scroll' }, svg));
    frame.append(element('div', { class: 'files' }, ...['svg', 'png'].map(kind =>
      element('button', { type: 'button', onclick: () => save(frame, svg, kind) }, `Save ${kind.toUpperCase()}`))));
    values(frame, svg);
  };
  const setUp = figure => {
    const frames = [...figure.querySelectorAll('.frame')], { choice } = figure.dataset;
    const show = name => frames.forEach(frame => {
      frame.hidden = frame.dataset.name !== name;
      if (!frame.hidden) prepare(figure, frame);
    });
    const names = frames.map(frame => frame.dataset.name);
    const first = names.includes(chosen.get(figure.id)) ? chosen.get(figure.id) : frames.find(frame => !frame.hidden).dataset.name;
    if (names.length > 1) {
      const select = element('select', { 'data-focus': figure.id, onchange: () => { chosen.set(figure.id, select.value); show(select.value); } },
        ...names.map(name => element('option', {}, name)));
      select.value = first;
      frames[0].before(element('label', { class: 'controls' }, `${choice} `, select));
    } else if (first) frames[0].before(element('p', { class: 'controls' }, first));
    show(first);
  };
  const setUpAll = () => {
    document.querySelectorAll('figure').forEach(setUp);
    for (const list of document.querySelectorAll('details')) {
      if (folded.has(list.id)) list.open = folded.get(list.id);
      list.addEventListener('toggle', () => folded.set(list.id, list.open));
    }
  };
  const theme = document.getElementById('theme');
  theme.addEventListener('change', () => { document.documentElement.dataset.theme = theme.value; });
  setUpAll();

  // ---------------------------------------------------------------- runs in progress
  const refresh = text => {
    const fresh = new DOMParser().parseFromString(text, 'text/html'), { scrollY } = window;
    const focus = document.activeElement?.dataset.focus;
    for (const part of ['title', 'h1', 'nav', 'main', '#live']) document.querySelector(part).replaceWith(fresh.querySelector(part));
    setUpAll();
    [...document.querySelectorAll('[data-focus]')].find(one => one.dataset.focus === focus)?.focus({ preventScroll: true });
    scrollTo(0, scrollY);
  };
  const state = document.getElementById('live').textContent;
  if (state) {
    let version = null, last = state;
    const ask = async () => {
      const live = () => document.getElementById('live');
      try {
        const answer = await fetch('/', { headers: version ? { 'If-None-Match': version } : {} });
        if (answer.status === 200) {
          refresh(await answer.text());
          version = answer.headers.get('ETag');
          last = live().textContent;
        }
        live().textContent = last;
      } catch { live().textContent = `no longer served; the last state was: ${last}`; }
      setTimeout(ask, 1000);
    };
    setTimeout(ask, 1000);
  }
})();
