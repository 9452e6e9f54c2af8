//! What the dashboard shows, and what keys do to it.

use super::view::{Panel, View};
use fedanchor_report::{Followers, LiveRun, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::path::PathBuf;
use std::time::SystemTime;

/// The state of the dashboard.
#[derive(Debug)]
pub(super) struct Dashboard {
    followers: Followers,
    colour: bool,
    panel: Panel,
    help: bool,
    /// The run that was chosen by a key; otherwise the newest that is running is shown.
    chosen: Option<PathBuf>,
}

impl Dashboard {
    pub(super) fn new(followers: Followers, colour: bool) -> Self {
        Self { followers, colour, panel: Panel::Clients, help: false, chosen: None }
    }

    /// Looks at the run folders.
    pub(super) fn poll(&mut self) {
        self.followers.poll();
    }

    /// What to draw.
    pub(super) fn view(&self, now: SystemTime) -> View<'_> {
        let runs = self.runs();
        View {
            folder: self.followers.folder(),
            problem: self.followers.problem(),
            selected: self.selected(&runs),
            panel: if self.is_panel(self.panel) { self.panel } else { Panel::Clients },
            help: self.help,
            colour: self.colour,
            now,
            runs,
        }
    }

    /// Handles a key; `true` if it is one to leave by.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return true,
            // Help is closed by any key.
            _ if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(-1),
            KeyCode::Char('n') | KeyCode::Down => self.choose(1),
            KeyCode::Char('p') | KeyCode::Up => self.choose(-1),
            _ => {}
        }
        false
    }

    fn runs(&self) -> Vec<&LiveRun> {
        self.followers.runs().iter().map(|follower| follower.run()).collect()
    }

    fn is_panel(&self, panel: Panel) -> bool {
        Panel::all(self.followers.runs().len() > 1).contains(&panel)
    }

    fn selected(&self, runs: &[&LiveRun]) -> usize {
        let chosen = runs.iter().position(|run| Some(&run.path) == self.chosen.as_ref());
        let running = || runs.iter().position(|run| run.status == Status::Running);
        chosen.or_else(running).unwrap_or(0)
    }

    /// Shows the next panel, or the one before.
    fn turn(&mut self, by: isize) {
        let all = Panel::all(self.followers.runs().len() > 1);
        let current = all.iter().position(|panel| *panel == self.panel).unwrap_or(0);
        self.panel = all[(current as isize + by).rem_euclid(all.len() as isize) as usize];
    }

    /// Shows the next run, or the one before.
    fn choose(&mut self, by: isize) {
        let runs = self.runs();
        let place =
            self.selected(&runs).saturating_add_signed(by).min(runs.len().saturating_sub(1));
        self.chosen = runs.get(place).map(|run| run.path.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyCode::{BackTab, Char, Down, Esc, Left, Right, Tab, Up};
    use std::fs::File;
    use std::time::Duration;

    /// Folders of runs in progress, the first being the newest.
    struct Case {
        folder: tempfile::TempDir,
        dashboard: Dashboard,
        running: Vec<File>,
    }

    impl Case {
        fn new(names: &[&str]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let followers = Followers::new(folder.path().to_owned());
            let mut case =
                Self { folder, dashboard: Dashboard::new(followers, true), running: Vec::new() };
            for (age, name) in (0..).zip(names) {
                case.run(name, age);
            }
            case.dashboard.poll();
            case
        }

        fn run(&mut self, name: &str, age: u64) {
            let folder = self.folder.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let config = File::create(folder.join("config.toml")).unwrap();
            let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age);
            config.set_modified(started).unwrap();
            let records = File::create(folder.join("rounds.jsonl")).unwrap();
            records.lock().unwrap();
            self.running.push(records);
        }

        fn press(&mut self, code: KeyCode) -> bool {
            self.dashboard.key(KeyEvent::new(code, KeyModifiers::NONE))
        }

        /// The name of the run that is shown.
        fn shown(&self) -> String {
            let view = self.dashboard.view(SystemTime::UNIX_EPOCH);
            view.runs[view.selected].path.file_name().unwrap().to_str().unwrap().to_owned()
        }

        fn panel(&self) -> Panel {
            self.dashboard.view(SystemTime::UNIX_EPOCH).panel
        }
    }

    #[test]
    fn there_are_three_ways_to_leave() {
        let mut case = Case::new(&["a"]);
        assert!(case.press(Char('q')) && case.press(Esc));
        assert!(case.dashboard.key(KeyEvent::new(Char('c'), KeyModifiers::CONTROL)));
        assert!(!case.press(Char('c')) && !case.press(Char('x')));
        // Any key closes the help first.
        assert!(!case.press(Char('?')));
        assert!(case.dashboard.view(SystemTime::UNIX_EPOCH).help);
        assert!(!case.press(Char('q')));
        assert!(!case.dashboard.view(SystemTime::UNIX_EPOCH).help && case.press(Char('q')));
    }

    #[test]
    fn panels_are_turned_in_both_directions() {
        let mut one = Case::new(&["a"]);
        let mut turned = |key| {
            one.press(key);
            one.panel()
        };
        let wanted = [Panel::Losses, Panel::Times, Panel::Notes, Panel::Clients];
        assert_eq!([Tab, Right, Tab, Tab].map(&mut turned), wanted);
        assert_eq!([Left, BackTab].map(&mut turned), [Panel::Notes, Panel::Times]);
        let mut two = Case::new(&["a", "b"]);
        two.press(Left);
        assert_eq!(two.panel(), Panel::Runs);
        // The list of runs is gone with the second run.
        std::fs::remove_dir_all(two.folder.path().join("b")).unwrap();
        (0..4).for_each(|_| two.dashboard.poll());
        assert_eq!(two.panel(), Panel::Clients);
    }

    #[test]
    fn the_newest_run_in_progress_is_shown_until_another_is_chosen() {
        let mut case = Case::new(&["c", "b", "a"]);
        assert_eq!(case.shown(), "c");
        case.running[0].unlock().unwrap();
        case.dashboard.poll();
        assert_eq!(case.shown(), "b");
        let mut pressed = |key| {
            case.press(key);
            case.shown()
        };
        let keys = [Char('n'), Down, Char('p'), Up, Up, Down, Down];
        assert_eq!(keys.map(&mut pressed), ["a", "a", "b", "c", "c", "b", "a"]);
        // Newer runs do not take the screen away from it.
        case.run("d", 0);
        (0..4).for_each(|_| case.dashboard.poll());
        assert_eq!(case.shown(), "a");
        std::fs::remove_dir_all(case.folder.path().join("a")).unwrap();
        (0..4).for_each(|_| case.dashboard.poll());
        assert_eq!(case.shown(), "d");
    }

    #[test]
    fn keys_do_no_harm_without_a_run() {
        let mut case = Case::new(&[]);
        for key in [Tab, Left, Char('n'), Up, Char('?')] {
            assert!(!case.press(key));
        }
        assert!(case.dashboard.view(SystemTime::UNIX_EPOCH).runs.is_empty());
    }
}
