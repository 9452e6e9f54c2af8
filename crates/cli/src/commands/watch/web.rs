//! The page of a report, served while its runs are in progress. It is rebuilt when a run has changed; requests are
//! answered from memory.

use super::{POLL, progress, state};
use crate::printer::Printer;
use anyhow::{Context, Result};
use fedanchor_record::words::printable;
use fedanchor_report::{Followers, LiveRun, Options, PageData, Server, Site, Status, Study, page};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Building the page takes at most this fraction (1 in 10) of the time, whatever the number and length of the runs, which
/// need the processor.
const SHARE: u32 = 10;

/// Serves the page until a signal stops it.
pub(super) fn serve(followers: Followers, address: &str, printer: &Printer) -> Result<()> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot listen for signals")?;
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || signals.forever().try_for_each(|signal| send.send(signal)));
    let bound = Server::bind(address).and_then(|server| Ok((server.address()?, server)));
    let (local, server) = bound.with_context(|| format!("cannot serve at {address}"))?;
    let folder = printable(&followers.folder.display().to_string());
    let mut live = LivePage::new(followers);
    let _serving = server.start(Arc::clone(&live.site)).context("cannot serve")?;
    printer.line(format!("watching {folder} at {}", url(local)));
    if !local.ip().to_canonical().is_loopback() {
        printer.status(format!(
            "warning: everyone who can reach {local} can read the page: there is no password"
        ));
    }
    printer.status("press Ctrl-C to stop serving; the run continues");
    let mut rest = POLL;
    while ended.recv_timeout(rest) == Err(RecvTimeoutError::Timeout) {
        let start = Instant::now();
        live.poll();
        rest = pause(start.elapsed());
    }
    Ok(())
}

/// The time until the next look, after one that took `taken`.
fn pause(taken: Duration) -> Duration {
    POLL.max(taken.saturating_mul(SHARE - 1))
}

/// The address for a browser on this machine.
fn url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// The page of the runs in a folder.
struct LivePage {
    followers: Followers,
    options: Options,
    site: Arc<Site>,
}

impl LivePage {
    fn new(followers: Followers) -> Self {
        let cache = fedanchor_data::cache::folder("t-sne");
        let options = Options { cache, ..Options::default() };
        let data = data(&followers, &options);
        Self { site: Arc::new(Site::new(page(&data))), followers, options }
    }

    /// Looks at the runs; whether the page was rebuilt.
    fn poll(&mut self) -> bool {
        if !self.followers.poll() {
            return false;
        }
        let data = data(&self.followers, &self.options);
        self.site.publish(page(&data));
        true
    }
}

fn data(followers: &Followers, options: &Options) -> PageData {
    let study = Study::new(followers.histories(&crate::commands::complete));
    let mut data = PageData::new(&study, options);
    if study.sections.is_empty() {
        data.title = followers.folder.display().to_string();
    }
    data.problems.extend(followers.problem.clone());
    let runs: Vec<&LiveRun> = followers.runs.iter().map(|follower| &follower.run).collect();
    data.live = Some(states(&runs));
    data
}

/// What the runs are doing: `running, round 3 of 40`, or of several `1 running, 4 finished`.
fn states(runs: &[&LiveRun]) -> String {
    match runs {
        [] => "waiting for a run".to_owned(),
        [run] => format!("{}, {}", state(run), progress(run)),
        _ => {
            let all = [
                (Status::Running, "running"),
                (Status::Finished, "finished"),
                (Status::Stopped, "stopped"),
                (Status::Missing, "not started"),
            ];
            let counts = all.iter().filter_map(|(status, name)| {
                let count = runs.iter().filter(|run| run.status == *status).count();
                (count > 0).then(|| format!("{count} {name}"))
            });
            counts.collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::watch::fixtures;
    use std::fs::{File, OpenOptions};
    use std::io::Write;

    const CONFIG: &str = "preset = \"paper\"\nseed = 1\nrounds = 40\n[data]\nname = \"cifar10\"\nanchors = 500\n\
        [partition]\nkind = \"iid\"\n[model]\nname = \"small\"\n[method]\nname = \"fedanchor\"\n";

    #[test]
    fn the_page_is_rebuilt_only_when_a_run_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let mut live = LivePage::new(Followers::new(run.clone()));
        let state = |live: &LivePage| data(&live.followers, &live.options);
        let looks = |live: &mut LivePage| (0..5).filter(|_| live.poll()).count();
        assert_eq!((looks(&mut live), state(&live).live.unwrap()), (0, "waiting for a run".into()));
        assert_eq!(state(&live).title, run.display().to_string());
        // It has started: there is nothing to show yet, and nothing to complain about.
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("config.toml"), CONFIG).unwrap();
        let mut records = File::create(run.join("rounds.jsonl")).unwrap();
        records.lock().unwrap();
        assert_eq!(looks(&mut live), 1);
        let waiting = state(&live);
        assert_eq!(waiting.live.unwrap(), "pre-training, round 0 of 40");
        assert!(
            waiting.sections.is_empty() && waiting.problems.is_empty(),
            "{:?}",
            waiting.problems
        );
        // A line is shown when it is complete.
        let line = serde_json::to_string(&fixtures::record(0)).unwrap();
        records.write_all(&line.as_bytes()[..20]).unwrap();
        assert_eq!(looks(&mut live), 0);
        writeln!(records, "{}", &line[20..]).unwrap();
        assert_eq!(looks(&mut live), 1);
        let shown = state(&live);
        assert_eq!(shown.live.unwrap(), "running, round 0 of 40");
        assert_eq!((shown.sections.len(), shown.problems), (1, Vec::new()));
        records.unlock().unwrap();
        drop(records);
        assert_eq!(
            (looks(&mut live), state(&live).live.unwrap()),
            (1, "stopped, round 0 of 40".into())
        );
        // Half a line that nobody completes is named.
        let mut torn = OpenOptions::new().append(true).open(run.join("rounds.jsonl")).unwrap();
        torn.write_all(b"{").unwrap();
        looks(&mut live);
        assert_eq!(state(&live).sections.len(), 1);
        std::fs::remove_dir_all(&run).unwrap();
        assert_eq!((looks(&mut live), state(&live).live.unwrap()), (1, "waiting for a run".into()));
    }

    #[test]
    fn the_states_of_several_runs_are_counted() {
        let mut runs = [3, 2, 1].map(|rounds| fixtures::run("run", rounds));
        assert_eq!(states(&[&runs[0]]), "running, round 2 of 4");
        (runs[1].status, runs[2].status) = (Status::Stopped, Status::Finished);
        let [a, b, c] = &runs;
        assert_eq!(states(&[a, b, c, c]), "1 running, 2 finished, 1 stopped");
    }

    #[test]
    fn a_browser_is_sent_to_an_address_that_exists() {
        for (address, wanted) in [
            ("127.0.0.1:80", "http://127.0.0.1:80"),
            ("0.0.0.0:8080", "http://127.0.0.1:8080"),
            ("[::]:8080", "http://[::1]:8080"),
            ("192.168.1.7:1", "http://192.168.1.7:1"),
        ] {
            assert_eq!(url(address.parse().unwrap()), wanted);
        }
    }

    #[test]
    fn a_page_that_takes_long_is_built_less_often() {
        assert_eq!(pause(Duration::from_millis(5)), POLL);
        assert_eq!(pause(Duration::from_secs(2)), Duration::from_secs(18));
    }
}
