//! `fedanchor node` and `fedanchor coordinator`: the two ends of a fleet.

use super::experiment;
use super::interrupt::{interruption, stop_on_interrupt};
use super::progress::Progress;
use super::run::print_summary;
use crate::cli::{CoordinatorArgs, NodeArgs};
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::{ConnectFleet, Federation, Observer, Phase, Resume, RunClients, RunOptions};
use fedanchor_data::{Partition, Progress as Reading};
use fedanchor_fleet::node::{Clients, Node, Settings, Source};
use fedanchor_fleet::{Bound, Mailbox, Metrics, MetricsServer, RemoteFleet, coordinator};
use fedanchor_record::{RoundRecord, Timing, files};
use indicatif::ProgressBar;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the end waits until the transport knows of it, and until answers in progress are sent.
const FAREWELL: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(3);
/// Folder for replies inside the run folder, whose disk has room for them. It exists only during a run.
const REPLIES: &str = "replies";
/// How often a node checks whether to stop.
const POLL: Duration = Duration::from_millis(200);

/// Serves a node until it is stopped.
pub fn node(args: NodeArgs, printer: &Printer) -> Result<()> {
    fedanchor::config::device(&args.device)?;
    if !args.data.exists() {
        bail!("--data: {} does not exist", args.data.display());
    }
    if let Some(test) = args.test.as_ref().filter(|test| !test.is_dir()) {
        bail!("--test: {} is no folder", test.display());
    }
    let clients = match (args.clients, args.name) {
        (Some(list), _) => Clients::Listed(list),
        (None, Some(name)) => Clients::One(name),
        (None, None) => Clients::One(folder_name(&args.data)?),
    };
    let metrics = args.metrics.as_ref().map(|_| Metrics::new(args.state.clone(), None));
    let _server = serve_metrics(metrics.as_ref(), args.metrics.as_deref(), printer)?;
    let settings = Settings {
        source: Source { path: args.data, clients, skip_unreadable: args.skip_unreadable },
        test: args.test,
        state: args.state,
        trunk: args.trunk,
        loss: args.loss,
        metrics,
        device: args.device,
        workers: args.workers.map(usize::from),
    };
    let stop = stop_on_interrupt(ProgressBar::hidden(), *printer, "stopping after this request")?;
    let node = Node::start(&args.socket, settings)?;
    printer.status(format!("waiting for a run at {}", node.path().display()));
    while !stop.load(Ordering::Relaxed) && !node.has_failed() {
        std::thread::sleep(POLL);
    }
    node.stop().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Ok(())
}

/// The client's name where none is given: that of its folder, or of its file without the extension.
fn folder_name(path: &Path) -> Result<String> {
    let path = path.canonicalize().with_context(|| format!("--data: {}", path.display()))?;
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let name = name.and_then(|name| name.to_str());
    name.map(str::to_owned).context("--name: required, since the folder has no name")
}

/// Runs the server's part of an experiment.
pub fn coordinator(args: CoordinatorArgs, printer: &Printer) -> Result<()> {
    let training = &args.training;
    let resume = args.resume.resume();
    let Some(out) = args.resume.resume.or(args.out) else {
        bail!("--out: name the run folder to create, or resume one with --resume");
    };
    let stored = (resume != Resume::No).then(|| out.join(files::CONFIG));
    let file = args.experiment.as_deref().or(stored.as_deref());
    let experiment = experiment(file, &training.settings(), printer)?;
    if !args.release.is_empty() && (resume == Resume::No || !experiment.fleet.keys) {
        bail!("--release: only for a run that is resumed, with fleet.keys=true");
    }
    // Before anything is touched that another coordinator may use.
    let bound = Bound::new(&args.socket)?;
    let mailbox = Arc::new(Mailbox::new(&out.join(REPLIES)));
    let socket = bound.serve(coordinator::routes(mailbox.clone()), GRACE)?;
    let metrics = args.metrics.as_ref();
    let metrics = metrics.map(|_| Metrics::new(out.clone(), Some(mailbox.clone())));
    let _server = serve_metrics(metrics.as_ref(), args.metrics.as_deref(), printer)?;
    let progress = Progress::new(printer, &experiment, &out, "", training);
    let mut watched = Watched { progress, metrics };
    let stopping =
        "stopping: a round still waiting for clients is repeated when the run is resumed";
    let stop = stop_on_interrupt(watched.progress.bar(), *printer, stopping)?;
    printer.status(format!("waiting for nodes at {}", socket.path().display()));
    let (there, asked, keys) = (mailbox.clone(), stop.clone(), out.join(files::KEYS));
    let connect: &ConnectFleet = &move |federation, run| {
        let (mailbox, stop) = (there.clone(), asked.clone());
        let fleet = RemoteFleet::new(mailbox, stop, federation, run)?;
        Ok(Box::new(match federation.experiment.fleet.keys {
            true => fleet.bind_names(keys.clone(), &args.release)?,
            false => fleet,
        }))
    };
    let clients = RunClients::Real { socket: &args.socket, connect };
    let workers = training.workers();
    let options = RunOptions { out: &out, resume, workers, stop: &stop, clients };
    let done = fedanchor::run(&experiment, options, &mut watched);
    let (stopped, message) = match &done {
        Err(error) => (None, error.to_string()),
        Ok(summary) => {
            let stopped = interruption(&experiment, summary, &out, &stop)?;
            let message = stopped.iter().map(|one| format!("interrupted: {}", one.done)).collect();
            (stopped, message)
        }
    };
    mailbox.end(done.is_ok() && stopped.is_none(), message, FAREWELL);
    drop(socket);
    let summary = done?;
    watched.progress.finish();
    print_summary(&summary, &out, printer, "");
    stopped.map_or(Ok(()), |stopped| Err(stopped.into()))
}

/// Serves metrics where that is asked for.
fn serve_metrics(
    metrics: Option<&Metrics>,
    address: Option<&str>,
    printer: &Printer,
) -> Result<Option<MetricsServer>> {
    let (Some(metrics), Some(address)) = (metrics, address) else { return Ok(None) };
    let server = metrics.serve(address)?;
    printer.status(format!("metrics at http://{}/metrics", server.address));
    Ok(Some(server))
}

/// Progress for a person, and metrics for a monitoring.
struct Watched<'a> {
    progress: Progress<'a>,
    metrics: Option<Metrics>,
}

impl Observer for Watched<'_> {
    fn reading(&mut self) -> Reading {
        self.progress.reading()
    }

    fn started(&mut self, federation: &Federation, clients: Option<&Partition>) {
        if let Some(metrics) = &self.metrics {
            metrics.started(federation.experiment.rounds);
        }
        self.progress.started(federation, clients);
    }

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        if let Some(metrics) = &self.metrics {
            metrics.round(record, timing);
        }
        self.progress.round(record, timing);
    }

    fn epoch(&mut self, phase: Phase, done: u32, planned: u32) {
        self.progress.epoch(phase, done, planned);
    }

    fn notice(&mut self, text: &str) {
        self.progress.notice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_called_like_its_folder() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("ward.7")).unwrap();
        std::fs::write(place.path().join("ward.8.npz"), "").unwrap();
        let name = |path: &str| folder_name(&place.path().join(path)).unwrap();
        assert_eq!(name("ward.7"), "ward.7");
        assert_eq!(name("ward.7/."), "ward.7");
        assert_eq!(name("ward.8.npz"), "ward.8");
        let refused = folder_name(Path::new("/")).unwrap_err().to_string();
        assert!(refused.starts_with("--name: "), "{refused}");
    }
}
