//! `fedanchor node` and `fedanchor coordinator`: the two ends of a fleet.

use super::interrupt::{Interrupted, left_undone, stop_on_interrupt};
use super::progress::Progress;
use super::quoted_path;
use super::run::{report, resolved};
use super::tracked::Tracked;
use crate::cli::{CoordinatorArgs, NodeArgs};
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor_fleet::node::{Clients, Settings, Source};
use fedanchor_fleet::{Mailbox, RemoteFleet, Socket, coordinator, node};
use fedanchor_record::files;
use indicatif::ProgressBar;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the end waits for the transport to be told.
const FAREWELL: Duration = Duration::from_secs(10);

/// Serves a node until it is stopped.
pub fn node(args: NodeArgs, printer: &Printer) -> Result<()> {
    fedanchor::config::device(&args.device)?;
    if !args.data.exists() {
        bail!("--data: there is nothing at {}", args.data.display());
    }
    let clients = match (args.clients, args.name) {
        (Some(list), _) => Clients::Listed(list),
        (None, Some(name)) => Clients::One(name),
        (None, None) => Clients::One(folder_name(&args.data)?),
    };
    let settings = Settings {
        source: Source { path: args.data, clients },
        state: args.state,
        device: args.device,
        workers: args.workers.map(usize::from),
    };
    let stop = stop_on_interrupt(ProgressBar::hidden(), *printer, "this request")?;
    let socket = Socket::serve(&args.socket, node::routes(settings)?)?;
    printer.status(format!("waiting for a run at {}", socket.path().display()));
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// The client's name where none is given: that of its folder.
fn folder_name(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)?;
    let name = path.file_stem().and_then(|name| name.to_str());
    name.map(str::to_owned).context("--name: name this client")
}

/// Runs the server's half of an experiment.
pub fn coordinator(args: CoordinatorArgs, printer: &Printer) -> Result<()> {
    let mut settings = args.settings;
    settings.extend(args.device.map(|device| format!("device={device}")));
    let (out, resume) = match (args.out, args.resume) {
        (_, Some(folder)) => (folder, Some(args.force)),
        (Some(out), None) => (out, None),
        (None, None) => bail!("--out: name the run folder to create, or resume one with --resume"),
    };
    let stored = resume.is_some().then(|| out.join(files::CONFIG));
    let experiment =
        resolved(args.experiment.as_deref().or(stored.as_deref()), &settings, printer)?;
    let mailbox = Arc::new(Mailbox::new(&args.socket.with_extension("replies"))?);
    let socket = Socket::serve(&args.socket, coordinator::routes(mailbox.clone()))?;
    let mut progress = Progress::new(printer, &experiment, &out);
    let stop = stop_on_interrupt(progress.bar(), *printer, "this round")?;
    printer.status(format!("waiting for nodes at {}", socket.path().display()));
    let mut tracked = Tracked::new(&mut progress, args.tensorboard, &out);
    let run = run_name(&out)?;
    let (there, asked) = (mailbox.clone(), stop.clone());
    let done = fedanchor::coordinate(
        &experiment,
        &out,
        resume,
        args.workers.map(usize::from),
        &stop,
        &mut tracked,
        &move |fleet| {
            let (mailbox, stop) = (there.clone(), asked.clone());
            Ok(Box::new(RemoteFleet::new(mailbox, stop, fleet.simulation(), &run)?))
        },
    );
    let message = match &done {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    mailbox.end(done.is_ok(), message, FAREWELL);
    let summary = done?;
    tracked.finish();
    progress.finish();
    report(&summary, &out, printer, "");
    match left_undone(&experiment, &summary, &stop)? {
        Some(done) => {
            let (out, socket) = (quoted_path(&out), quoted_path(&args.socket));
            let advice =
                format!("resume with `fedanchor coordinator --resume {out} --socket {socket}`");
            Err(Interrupted::new(done, advice).into())
        }
        None => Ok(()),
    }
}

/// What the nodes know the run by: its folder, from any working directory, also after it was resumed.
fn run_name(out: &Path) -> Result<String> {
    Ok(std::path::absolute(out)?.display().to_string())
}
