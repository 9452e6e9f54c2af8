//! What the dashboard shows, as plain data.

use fedanchor_report::LiveRun;
use std::path::Path;
use std::time::SystemTime;

/// What to draw.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The folder that is watched.
    pub(super) folder: &'a Path,
    /// Why it cannot be searched.
    pub(super) problem: Option<&'a str>,
    /// Its runs.
    pub(super) runs: Vec<&'a LiveRun>,
    /// The one that is shown.
    pub(super) selected: usize,
    pub(super) panel: Panel,
    pub(super) help: bool,
    pub(super) colour: bool,
    pub(super) now: SystemTime,
}

impl View<'_> {
    /// The run that is shown.
    pub(super) fn run(&self) -> Option<&LiveRun> {
        self.runs.get(self.selected).copied()
    }
}

/// What the lower part of the screen shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Panel {
    Clients,
    Losses,
    Times,
    Notes,
    Runs,
}

impl Panel {
    const ALL: [Self; 5] = [Self::Clients, Self::Losses, Self::Times, Self::Notes, Self::Runs];

    /// The panels, of one run or of several.
    pub(super) fn all(several: bool) -> &'static [Self] {
        if several { &Self::ALL } else { &Self::ALL[..4] }
    }
}
