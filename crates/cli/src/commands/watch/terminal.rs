//! The dashboard on the terminal: keys, signals, and a terminal that is left as it was found.

use super::POLL;
use super::dashboard::Dashboard;
use super::draw::draw;
use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::time::{Duration, Instant, SystemTime};

/// The longest time that a signal waits.
const WAIT: Duration = Duration::from_millis(100);

/// Shows the dashboard until a key or a signal ends it.
pub(super) fn show(dashboard: Dashboard) -> Result<()> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).context("cannot listen for signals")?;
    // Also restores the terminal on a panic.
    let shown = match ratatui::try_init() {
        Ok(mut terminal) => run(&mut terminal, dashboard, &mut signals),
        Err(error) => Err(error.into()),
    };
    ratatui::restore();
    if let Some(signal) = shown.context("cannot use the terminal")? {
        // As if nobody had listened: the shell is told which signal it was.
        emulate_default_handler(signal)?;
    }
    Ok(())
}

/// The signal that ended it, if it was one.
fn run(
    terminal: &mut DefaultTerminal,
    mut dashboard: Dashboard,
    signals: &mut Signals,
) -> Result<Option<i32>> {
    let mut polled = Instant::now();
    loop {
        if polled.elapsed() >= POLL {
            dashboard.poll();
            polled = Instant::now();
        }
        terminal.draw(|frame| draw(frame, &dashboard.view(SystemTime::now())))?;
        // The next look at the folder, a key or another size is a reason to draw again.
        while polled.elapsed() < POLL {
            if let Some(signal) = signals.pending().next() {
                return Ok(Some(signal));
            }
            if !event::poll(WAIT)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    if dashboard.key(key) {
                        return Ok(None);
                    }
                    break;
                }
                Event::Resize(..) => break,
                _ => {}
            }
        }
    }
}
