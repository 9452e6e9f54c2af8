//! Downloads one file with the system's `curl`: resumable, limited to the published size, and verified.
//!
//! Size and checksum are known beforehand, so nothing depends on the server honouring a range,
//! stopping in time or sending the right bytes. `curl` writes to a pipe, not to the file: it ends with this process, however
//! that ends, and never writes more than is expected. A library was rejected: with TLS it is a tenth of the build.

use super::{Checksum, PIECE, Phase, Progress, Report, at, describe};
use crate::catalog::File;
use crate::error::unusable;
use crate::{DataError, Result};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ALTERNATIVES: &str = "use another address (--mirror) or a local copy (--from)";

/// The time limit in seconds for a connection, and for a transfer that stalls.
const TIMEOUT: &str = "60";

/// Of curl: the server responded with an error.
const HTTP_ERROR: Option<i32> = Some(22);
/// Of curl: the server cannot resume at this byte.
const RANGE_ERROR: Option<i32> = Some(33);
/// Of curl: the server offers more than the limit.
const TOO_LARGE: Option<i32> = Some(63);

/// Downloads the file to `to`, unless it exists. Only a verified file gets that name, and an existing file is verified
/// again.
pub(super) fn transfer(url: &str, file: &File, to: &Path, progress: Report) -> Result<()> {
    if fs::symlink_metadata(to).is_ok_and(|found| found.is_file() && found.len() == file.bytes)
        && Checksum::measure(to, file.name, progress)?.matches(file)
    {
        return Ok(());
    }
    let part = to.with_file_name(format!("{}.part", file.name));
    let have = match fs::symlink_metadata(&part) {
        Ok(metadata) if metadata.is_file() && metadata.len() <= file.bytes => metadata.len(),
        Ok(_) => {
            // Larger than the file, or a link, which must not be written through.
            at(&part, fs::remove_file)?;
            0
        }
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(DataError::io(&part, error)),
    };
    if have < file.bytes {
        receive(url, file, &part, have, progress)?;
    }
    let sum = Checksum::measure(&part, file.name, progress)?;
    if !sum.matches(file) {
        at(&part, fs::remove_file)?;
        let expected = describe("a file", file.bytes, file.sha256);
        let found = describe("one", sum.bytes, &sum.sha256);
        let advice = "the downloaded data was deleted: run the same command again to start over";
        return failed(url, &format!("expected {expected}, found {found}; {advice}"));
    }
    at(to, |to| fs::rename(&part, to))
}

fn failed<T>(url: &str, reason: &str) -> Result<T> {
    unusable(format!("{url}: {reason}"))
}

/// Downloads the rest of the part after its first `have` bytes.
fn receive(url: &str, file: &File, part: &Path, have: u64, progress: Report) -> Result<()> {
    let mut curl = match curl(url, have, file.bytes - have).spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let by_hand = part.with_file_name(file.name);
            let by_hand = format!("or download this file by hand to {}", by_hand.display());
            return failed(url, &format!("curl is not installed: install it, {by_hand}"));
        }
        curl => curl.map_err(|error| DataError::io("curl", error))?,
    };
    let stored = store(&mut curl, file, part, have, progress);
    if !matches!(stored, Ok(done) if done <= file.bytes) {
        let _ = curl.kill(); // it may wait for the server
    }
    let outcome = curl.wait_with_output().map_err(|error| DataError::io("curl", error))?;
    let (done, code, total) = (stored?, outcome.status.code(), file.bytes);
    if done == total {
        return Ok(());
    }
    let (complete, range) = (outcome.status.success(), [RANGE_ERROR, TOO_LARGE].contains(&code));
    if done == have && have > 0 && (complete || range) {
        at(part, fs::remove_file)?;
        return receive(url, file, part, 0, progress);
    }
    let other_file = |found: &str| {
        at(part, fs::remove_file)?;
        failed(url, &format!("{found} the expected {total} bytes: this is another file"))
    };
    if done > total || code == TOO_LARGE {
        return other_file("more than");
    }
    if complete {
        return other_file(&format!("only {done} of"));
    }
    let message = String::from_utf8_lossy(&outcome.stderr);
    let reason = message.lines().next().unwrap_or("the connection was closed");
    if code == HTTP_ERROR {
        let status = reason.rsplit(": ").next().unwrap_or(reason);
        return failed(url, &format!("the server responded with {status}; {ALTERNATIVES}"));
    }
    if done == have {
        return failed(url, &format!("no response ({reason}); {ALTERNATIVES}"));
    }
    let advice = "run the same command again to resume";
    failed(url, &format!("{reason} after {done} of {total} bytes: {advice}"))
}

/// The command that writes the file without its first `have` bytes, at most `rest`, to its output.
fn curl(url: &str, have: u64, rest: u64) -> Command {
    let mut curl = Command::new("curl");
    // Not the user's settings, which could change the output.
    curl.args(["--disable", "--silent", "--show-error", "--fail", "--location", "--globoff"]);
    curl.args(["--connect-timeout", TIMEOUT, "--speed-time", TIMEOUT, "--speed-limit", "1"]);
    curl.args(["--user-agent", concat!("fedanchor/", env!("CARGO_PKG_VERSION"))]);
    // Where the address has TLS, a redirection has it too.
    let protocols = if url.starts_with("https://") { "=https" } else { "=http,https" };
    curl.args(["--proto", protocols, "--proto-redir", protocols, "--proto-default", "https"]);
    if ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| url.contains(&format!("://{host}"))) {
        curl.args(["--noproxy", "*"]);
    }
    if have > 0 {
        curl.args(["--continue-at", &have.to_string()]);
    }
    curl.args(["--max-filesize", &rest.to_string(), "--url", url]);
    curl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    curl
}

/// Appends what curl writes to the part, which has `done` bytes, until it ends or there is too much. Returns the new
/// number of bytes.
fn store(
    curl: &mut Child,
    file: &File,
    part: &Path,
    mut done: u64,
    progress: Report,
) -> Result<u64> {
    let cannot_write = |error| DataError::io(part, error);
    let opened = fs::OpenOptions::new().create(true).append(true).open(part);
    let mut to = opened.map_err(cannot_write)?;
    let mut body = curl.stdout.take().expect("the output is a pipe");
    let mut piece = vec![0; PIECE];
    loop {
        let (name, total) = (file.name, file.bytes);
        progress(Progress { phase: Phase::Downloading, file: name, done, total });
        let count = match body.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            count => count.map_err(|error| DataError::io("curl", error))?,
        };
        done += count as u64;
        if count == 0 || done > total {
            // Before it gets its name.
            to.sync_all().map_err(cannot_write)?;
            return Ok(done);
        }
        to.write_all(&piece[..count]).map_err(cannot_write)?;
    }
}
