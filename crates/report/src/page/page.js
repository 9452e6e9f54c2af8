'use strict';
// Draws the report from its data. Text from runs is only ever set as text.
(() => {
  const $ = id => document.getElementById(id);
  let data = JSON.parse($('data').textContent);
  const DASHES = ['solid', [9, 4], [2, 3], [9, 3, 2, 3]];
  const SYMBOLS = ['circle', 'rect', 'triangle', 'diamond', 'roundRect', 'pin', 'arrow'];
  const STAR = 'path://M50 0 61 35 98 35 68 57 79 92 50 70 21 92 32 57 2 35 39 35Z';
  const views = [];          // every figure on the page
  const hidden = new Map();  // what a reader switched, by figure and line
  const folded = new Map();  // lists that a reader closed or opened, by section

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === 'class') made.className = value;
      else if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const lineColour = style => data.line_colours[style % data.line_colours.length];
  const number = (value, digits = 2) => value == null ? '–' :
    Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(+value.toFixed(digits));

  // ---------------------------------------------------------------- charts
  const textStyle = () => ({ color: colour('--ink'), fontFamily: 'system-ui, sans-serif' });
  const axis = (spec, more) => ({
    name: spec.label, nameLocation: 'middle', nameTextStyle: { color: colour('--soft') },
    axisLabel: { color: colour('--soft'), hideOverlap: true },
    axisLine: { show: true, lineStyle: { color: colour('--line') } },
    splitLine: { lineStyle: { color: colour('--line'), opacity: 0.6 } },
    ...(spec.whole ? { minInterval: 1 } : {}), ...(spec.min == null ? {} : { min: spec.min }), ...(spec.max == null ? {} : { max: spec.max }), ...more,
  });
  // Shares end at 100 %, even if a band reaches beyond.
  const percent = spec => spec.label.includes('%') && spec.max == null ? { max: range => range.max > 95 ? 100 : null } : {};
  const tools = zoom => ({
    right: 0, top: 0, itemSize: 14, iconStyle: { borderColor: colour('--soft') },
    feature: {
      ...(zoom ? { dataZoom: { filterMode: 'none', title: { zoom: 'Zoom', back: 'Zoom back' } } } : {}),
      restore: { title: 'Whole figure' },
      saveAsImage: { title: 'Save', backgroundColor: colour('--paper') },
    },
  });
  const base = () => ({
    animation: false, textStyle: textStyle(), backgroundColor: 'transparent',
    aria: { enabled: true }, grid: { left: 52, right: 14, top: 34, bottom: 42 },
  });
  const tooltip = more => ({
    confine: true, backgroundColor: colour('--paper'), borderColor: colour('--line'),
    textStyle: { color: colour('--ink'), fontSize: 12 }, ...more,
  });
  // A tooltip is built from nodes, so that names stay text.
  const tip = (head, rows) => {
    const box = element('div', {}, element('strong', {}, head));
    for (const [marker, name, value] of rows) {
      const dot = element('span', { style: `display:inline-block;width:10px;height:10px;border-radius:5px;margin-right:6px;background:${marker}` });
      box.append(element('div', {}, dot, `${name}: ${value}`));
    }
    return box;
  };

  const smoothed = (values, window) => values.map((_, end) => {
    const part = values.slice(Math.max(0, end + 1 - window), end + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });

  const lines = (chart, figure) => {
    const window = /accuracy|validation|labels|traffic/.test(figure.id) ? Math.max(1, +$('smooth').value || 1) : 1;
    const series = [], legend = [];
    let first = Infinity, last = -Infinity;
    for (const line of chart.lines) for (const [x] of line.points) { first = Math.min(first, x); last = Math.max(last, x); }
    if (first === last) { first = Math.max(0, first - 1); last += 1; }
    chart.lines.forEach((line, place) => {
      if (!line.points.length) return;
      const ink = lineColour(line.style);
      const y = smoothed(line.points.map(point => point[1]), window);
      if (line.band) {
        const low = smoothed(line.band.map(ends => ends[0]), window), high = smoothed(line.band.map(ends => ends[1]), window);
        const quiet = { type: 'line', name: line.name, stack: `band ${place}`, stackStrategy: 'all', silent: true, symbol: 'none', lineStyle: { opacity: 0 }, tooltip: { show: false }, z: 1 };
        series.push({ ...quiet, data: line.points.map((point, at) => [point[0], low[at]]) });
        series.push({ ...quiet, areaStyle: { color: ink, opacity: 0.16 }, data: line.points.map((point, at) => [point[0], high[at] - low[at]]) });
      }
      series.push({
        type: 'line', name: line.name, id: `line ${place}`, z: 3, data: line.points.map((point, at) => [point[0], y[at]]),
        lineStyle: { color: ink, width: 2, type: DASHES[line.style % DASHES.length] }, itemStyle: { color: ink },
        symbol: SYMBOLS[line.style % SYMBOLS.length], symbolSize: 5, showSymbol: line.points.length <= 60, emphasis: { focus: 'series' },
        spread: line.band ? line.band.map(ends => (ends[1] - ends[0]) / 2) : null,
      });
      legend.push({ name: line.name, colour: ink, dash: DASHES[line.style % DASHES.length], shown: line.shown });
    });
    chart.references.forEach((reference, place) => {
      const ink = colour('--soft'), dash = [[4, 3], [1, 2], [10, 3], [6, 2, 1, 2]][place % 4];
      series.push({
        type: 'line', name: reference.name, id: `reference ${place}`, symbol: 'none', z: 2,
        data: [[first, reference.value], [last, reference.value]],
        lineStyle: { color: ink, width: 1.3, type: dash }, itemStyle: { color: ink },
      });
      legend.push({ name: `${reference.name} (${number(reference.value)})`, key: reference.name, colour: ink, dash, shown: true });
    });
    const option = {
      ...base(), series, toolbox: tools(true),
      xAxis: axis(chart.x, { type: 'value', min: first, ...(chart.x.label === 'round' ? { max: last } : {}), nameGap: 26, splitLine: { show: false } }),
      yAxis: axis(chart.y, { type: 'value', scale: chart.y.min == null, nameGap: 38, ...percent(chart.y) }),
      dataZoom: [{ type: 'inside', zoomOnMouseWheel: 'ctrl', moveOnMouseMove: false, filterMode: 'none' }],
      tooltip: tooltip({
        trigger: 'axis', axisPointer: { type: 'line' },
        formatter: items => {
          const seen = items.filter(item => String(item.seriesId).includes('line '));
          const rows = seen.map(item => {
            const spread = series.find(one => one.id && item.seriesId.includes(one.id))?.spread?.[item.dataIndex];
            return [item.color, item.seriesName, number(item.value[1]) + (spread > 0 ? ` ± ${number(spread)}` : '')];
          });
          return tip(`${chart.x.label} ${number(items[0].value[0])}`, rows);
        },
      }),
    };
    return { option, legend };
  };

  const bars = chart => {
    const series = chart.series.map(one => ({
      type: 'bar', name: one.name, data: one.values, ...(chart.stacked ? { stack: 'all' } : {}),
      itemStyle: { color: lineColour(one.style) }, emphasis: { focus: 'series' }, barMaxWidth: 60,
    }));
    // Names that would overlap are slanted, with room for them below.
    const slanted = chart.groups.length > 4, longest = Math.max(0, ...chart.groups.map(name => name.length));
    const room = slanted ? Math.min(290, 20 + longest * 4.6) : 42;
    const labels = slanted ? { rotate: 45, width: 390, overflow: 'truncate' } : { width: 130, overflow: 'break', lineHeight: 14 };
    const option = {
      ...base(), series, toolbox: tools(false), aria: { enabled: true, decal: { show: true } },
      grid: { left: slanted ? Math.max(52, room * 0.7) : 52, right: 14, top: 34, bottom: room + 18 },
      xAxis: axis(chart.x, { type: 'category', data: chart.groups, nameGap: room, axisLabel: { color: colour('--soft'), interval: 0, ...labels } }),
      yAxis: axis(chart.y, { type: 'value', nameGap: 38 }),
      tooltip: tooltip({
        trigger: 'axis', axisPointer: { type: 'shadow' },
        formatter: items => tip(items[0].name, items.map(item => [item.color, item.seriesName, number(item.value)])),
      }),
    };
    return { option, legend: chart.series.map(one => ({ name: one.name, colour: lineColour(one.style), dash: 'solid', wide: true, shown: true })) };
  };

  const heat = chart => {
    const cells = [], values = chart.values.flat();
    chart.values.forEach((row, y) => row.forEach((value, x) => cells.push([x, y, value])));
    const signed = chart.scale === 'signed';
    const option = {
      ...base(), toolbox: tools(false), grid: { left: 90, right: 70, top: 34, bottom: 84 },
      xAxis: axis(chart.x, { type: 'category', data: chart.columns, nameGap: 66, axisLabel: { color: colour('--soft'), rotate: 45, width: 80, overflow: 'truncate' }, splitLine: { show: false } }),
      yAxis: axis(chart.y, { type: 'category', data: chart.rows, inverse: true, nameGap: 74, axisLabel: { color: colour('--soft'), width: 66, overflow: 'truncate', hideOverlap: true }, splitLine: { show: false } }),
      visualMap: {
        min: signed ? -1 : 0, max: signed ? 1 : Math.max(...values, 1e-9), calculable: true, orient: 'vertical', right: 0, top: 'middle',
        precision: chart.decimals, itemWidth: 12, itemHeight: 150, textStyle: { color: colour('--soft') },
        inRange: { color: signed ? ['#e1823c', '#ffffff', '#468ccd'] : ['#ffffff', '#468ccd'] },
      },
      tooltip: tooltip({
        formatter: item => tip(`${chart.y.label}: ${chart.rows[item.value[1]]}`, [[item.color, `${chart.x.label}: ${chart.columns[item.value[0]]}`, `${number(item.value[2])} (${chart.label})`]]),
      }),
      series: [{
        type: 'heatmap', name: chart.label, data: cells, itemStyle: { borderColor: colour('--raised'), borderWidth: chart.rows.length > 40 ? 0 : 1 },
        label: { show: chart.rows.length <= 12 && chart.columns.length <= 12, color: '#1c1f24', fontSize: 10, formatter: item => item.value[2].toFixed(chart.decimals) },
      }],
    };
    return { option, legend: [] };
  };

  const points = chart => {
    const ink = place => data.class_colours[place % data.class_colours.length];
    const series = chart.swarms.flatMap((swarm, place) => swarm.points.length ? [
      { type: 'scatter', name: swarm.name, data: swarm.points, symbolSize: 4, itemStyle: { color: ink(place), opacity: 0.8 } },
      { type: 'scatter', name: swarm.name, data: [swarm.centre], symbol: STAR, symbolSize: 20, z: 4, itemStyle: { color: ink(place), borderColor: colour('--ink'), borderWidth: 1 } },
    ] : []);
    const bare = { type: 'value', scale: true, axisLabel: { show: false }, axisTick: { show: false }, splitLine: { show: false }, axisLine: { show: false } };
    const option = {
      ...base(), series, toolbox: tools(true), grid: { left: 10, right: 10, top: 34, bottom: 10 }, xAxis: bare, yAxis: bare,
      dataZoom: [{ type: 'inside', xAxisIndex: 0, zoomOnMouseWheel: 'ctrl', filterMode: 'none' }, { type: 'inside', yAxisIndex: 0, zoomOnMouseWheel: 'ctrl', filterMode: 'none' }],
      tooltip: tooltip({ formatter: item => tip(item.seriesName, []) }),
    };
    return { option, legend: chart.swarms.map((swarm, place) => ({ name: swarm.name, colour: ink(place), dash: 'solid', wide: true, shown: true })) };
  };

  const sheet = (chart, box) => {
    box.replaceChildren(...chart.rows.flatMap(([title, pictures]) => [
      element('p', { class: 'sheet-title' }, title),
      element('div', { class: 'sheet' }, ...pictures.map(picture => element('div', {},
        element('img', { src: `data:image/png;base64,${picture.png}`, alt: picture.caption.join(', ') }),
        ...picture.caption.map(text => element('span', {}, text))))),
    ]));
  };

  const DRAW = { lines, bars, heat, points };

  // ---------------------------------------------------------------- figures
  class View {
    constructor(figure) {
      this.figure = figure;
      this.frame = figure.chosen;
      this.box = element('div', { class: 'chart', tabindex: '0', role: 'img', 'aria-label': `${figure.title}. ${figure.caption}`, onkeydown: event => this.step(event) });
      this.legend = element('fieldset', { class: 'legend', 'aria-label': 'Lines' });
      const head = element('h3', {}, figure.title);
      this.node = element('figure', { id: `figure-${figure.id}` }, head);
      this.choices = element('div', { class: 'choices' });
      this.choose();
      this.node.append(this.choices, this.legend, this.box, element('figcaption', {}, figure.caption));
      this.files = element('div', { class: 'files' });
      if (!data.live) this.node.append(this.files);
    }

    choose() {
      const { frames, choice } = this.figure;
      const options = frames.map(frame => element('option', {}, frame.name));
      const select = element('select', { 'aria-label': choice, onchange: () => { this.frame = select.selectedIndex; this.draw(); } }, ...options);
      select.selectedIndex = this.frame;
      if (frames.length > 1) this.choices.replaceChildren(element('label', { class: 'controls' }, `${choice} `, select));
      else if (frames[0].name) this.choices.replaceChildren(element('p', { class: 'sheet-title' }, frames[0].name));
    }

    // The same figure with new values: zoom, switches and the choice of a reader stay.
    update(figure) {
      const before = this.figure, chosen = before.frames[this.frame].name;
      this.figure = figure;
      if (figure.frames.map(frame => frame.name).join('\n') !== before.frames.map(frame => frame.name).join('\n')) {
        const same = figure.frames.findIndex(frame => frame.name === chosen);
        this.frame = this.frame === before.chosen || same < 0 ? figure.chosen : same;
        this.choose();
      }
      if (this.drawn) this.draw();
    }

    draw() {
      const { figure } = this, chart = figure.frames[this.frame].chart;
      this.drawn = true;
      const name = figure.frames.length > 1 && chart.kind !== 'bars' ? `${figure.id}-${this.frame + 1}` : figure.id;
      this.files.replaceChildren(element('a', { href: `figures/${name}.svg` }, 'SVG'), element('a', { href: `figures/${name}.png` }, 'PNG'));
      if (chart.kind === 'sheet') { this.box.style.height = 'auto'; return sheet(chart, this.box); }
      if (typeof echarts === 'undefined') {
        const plain = $(`svg-${figure.id}-${this.frame}`);
        this.box.style.height = 'auto';
        return this.box.replaceChildren(plain ? plain.content.cloneNode(true) : 'No drawing.');
      }
      const { option, legend } = DRAW[chart.kind](chart, figure);
      if (chart.kind === 'heat') this.box.style.height = `${Math.min(900, Math.max(300, 150 + chart.rows.length * 24))}px`;
      if (chart.kind === 'bars' && chart.groups.length > 4) this.box.style.height = '580px';
      if (chart.kind === 'points') this.box.style.height = '420px';
      const selected = {};
      for (const entry of legend) selected[entry.key ?? entry.name] = hidden.get(`${figure.id} ${entry.name}`) ?? entry.shown;
      option.legend = { show: false, selected };
      const zoom = this.chart?.getOption()?.dataZoom?.map(({ start, end }) => ({ start, end }));
      this.chart ??= echarts.init(this.box, null, { renderer: chart.kind === 'points' ? 'canvas' : 'svg' });
      this.chart.setOption(option, { notMerge: true });
      zoom?.forEach((range, dataZoomIndex) => this.chart.dispatchAction({ type: 'dataZoom', dataZoomIndex, ...range }));
      this.switches(legend, selected);
    }

    switches(legend, selected) {
      // The same switches stay, and with them the reader's focus.
      const entries = JSON.stringify(legend);
      if (entries === this.entries) return;
      this.entries = entries;
      this.legend.replaceChildren(...legend.map(entry => {
        const key = entry.key ?? entry.name;
        const box = element('input', { type: 'checkbox', onchange: () => {
          hidden.set(`${this.figure.id} ${entry.name}`, box.checked);
          this.chart.dispatchAction({ type: box.checked ? 'legendSelect' : 'legendUnSelect', name: key });
        } });
        box.checked = selected[key];
        const sample = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
        sample.setAttribute('width', '26'); sample.setAttribute('height', '10'); sample.setAttribute('aria-hidden', 'true');
        const stroke = document.createElementNS('http://www.w3.org/2000/svg', 'line');
        for (const [name, value] of Object.entries({ x1: 0, x2: 26, y1: 5, y2: 5, stroke: entry.colour, 'stroke-width': entry.wide ? 9 : 2.5, 'stroke-dasharray': entry.dash === 'solid' ? 'none' : entry.dash.join(' ') })) stroke.setAttribute(name, value);
        sample.append(stroke);
        return element('label', {}, box, sample, entry.name);
      }));
    }

    // Arrow keys move from point to point, as the pointer does.
    step(event) {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by || !this.chart) return;
      event.preventDefault();
      const series = this.chart.getOption().series;
      const at = Math.max(0, series.findIndex(one => String(one.id).startsWith('line ')));
      const count = series[at].data.length;
      this.at = Math.min(count - 1, Math.max(0, (this.at ?? -1) + by));
      this.chart.dispatchAction({ type: 'showTip', seriesIndex: at, dataIndex: this.at });
    }
  }

  const watcher = 'IntersectionObserver' in window ? new IntersectionObserver(entries => {
    for (const entry of entries) {
      const view = views.find(one => one.box === entry.target);
      if (entry.isIntersecting && view && !view.drawn) view.draw();
    }
  }, { rootMargin: '400px' }) : null;

  const place = figure => {
    const view = new View(figure);
    views.push(view);
    if (watcher) watcher.observe(view.box); else setTimeout(() => view.draw());
    return view.node;
  };

  // ---------------------------------------------------------------- tables and page
  const table = one => {
    const numeric = one.columns.map((_, column) => column > 0 && one.rows.every(row => /^$|^[-−+]?[\d.,]+( ± [\d.]+)?$/.test(row[column])));
    const cell = (name, text, column) => element(name, numeric[column] ? { class: 'number' } : {}, text);
    const body = element('table', {}, element('caption', {}, one.title),
      element('thead', {}, element('tr', {}, ...one.columns.map((text, column) => cell('th', text, column)))),
      element('tbody', {}, ...one.rows.map(row => element('tr', {}, ...row.map((text, column) => cell('td', text, column))))));
    const box = element('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': one.title }, body);
    if (!data.live) box.append(element('div', { class: 'files' }, element('a', { href: `tables/${one.id}.csv` }, 'CSV'), element('a', { href: `tables/${one.id}.tex` }, 'LaTeX')));
    return box;
  };
  const list = (key, title, items, open) => {
    if (!items.length) return [];
    const box = element('details', { class: 'notes', ontoggle: () => folded.set(key, !box.open) },
      element('summary', {}, `${title} (${items.length})`), element('ul', {}, ...items.map(text => element('li', {}, text))));
    box.open = folded.has(key) ? !folded.get(key) : open;
    return [box];
  };

  const overview = () => data.overview.length ? [element('section', { 'aria-label': 'All tasks' }, element('div', { class: 'figures' }, ...data.overview.map(place)))] : [];

  // Everything but the figures: replaced when the data change.
  const texts = () => {
    $('title').textContent = data.title;
    document.title = `${data.title} · fedanchor report`;
    $('problems').replaceChildren(...list('problems', 'To know about these runs', data.problems, data.problems.length < 6));
    for (const section of data.sections) {
      const box = $(section.id);
      box.querySelector('.before').replaceChildren(...section.tables.slice(0, 1).map(table), ...list(section.id, 'Notes', section.notes, true));
      box.querySelector('.after').replaceChildren(...section.tables.slice(1).map(table));
    }
  };

  const show = () => {
    views.splice(0).forEach(view => { watcher?.unobserve(view.box); view.chart?.dispose(); });
    const several = data.sections.length > 1;
    $('contents').replaceChildren(...(several ? [element('ul', {}, ...data.sections.map(section => element('li', {}, element('a', { href: `#${section.id}` }, section.title))))] : []));
    $('main').replaceChildren(element('div', { id: 'problems' }), ...(several ? overview() : []),
      ...data.sections.map(section => element('section', { id: section.id },
        ...(several ? [element('h2', {}, section.title)] : []), element('div', { class: 'before' }),
        element('div', { class: 'figures' }, ...section.figures.map(place)), element('div', { class: 'after' }))),
      ...(several ? [] : overview()));
    texts();
  };

  const redraw = () => views.filter(view => view.drawn).forEach(view => view.draw());
  const drawAll = () => views.filter(view => !view.drawn).forEach(view => view.draw());
  const setTheme = () => {
    const wanted = $('theme').value;
    if (wanted === 'auto') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = wanted;
    redraw();
  };
  $('theme').addEventListener('change', setTheme);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  $('smooth').value = data.smooth;
  $('smooth').addEventListener('input', redraw);
  addEventListener('resize', () => views.forEach(view => view.chart?.resize()));
  addEventListener('beforeprint', drawAll);
  show();

  // ---------------------------------------------------------------- a run that goes on
  const figures = all => [...all.overview, ...all.sections.flatMap(section => section.figures)];
  const outline = all => JSON.stringify([all.sections.map(section => section.id), figures(all).map(figure => figure.id)]);
  const refresh = fresh => {
    const same = outline(fresh) === outline(data), scroll = scrollY;
    data = fresh;
    if (!same) { show(); scrollTo(0, scroll); return; }
    const updated = figures(data);
    for (const view of views) view.update(updated.find(figure => figure.id === view.figure.id));
    texts();
  };
  if (data.live) {
    let version = null;
    const ask = async () => {
      try {
        const answer = await fetch('data.json', { headers: version ? { 'If-None-Match': version } : {} });
        if (answer.status === 200) {
          const fresh = await answer.json();
          // Without ECharts the drawings come with the page.
          if (version && typeof echarts === 'undefined') return location.reload();
          version = answer.headers.get('ETag');
          refresh(fresh);
        }
        $('live').textContent = data.live;
      } catch { $('live').textContent = `no longer served; the last state was: ${data.live}`; }
      setTimeout(ask, 1000);
    };
    $('live').textContent = data.live;
    setTimeout(ask, 1000);
  }
  window.fedanchorReport = { views, drawAll };
})();
