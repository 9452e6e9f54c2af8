//! Downloads one file over HTTP: resumable, limited to the published size, and verified.
//!
//! Size and checksum are known beforehand, so nothing depends on the server honouring a range,
//! stopping in time or sending the right bytes.

use super::{Checksum, PIECE, Phase, Progress, Report, at, describe};
use crate::catalog::File;
use crate::error::unusable;
use crate::{DataError, Result};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;
use ureq::Body;
use ureq::http::Response;

const ALTERNATIVES: &str = "use another address (--mirror) or a local copy (--from)";

/// The time limit for a response, and for each piece of it.
const TIMEOUT: Duration = Duration::from_secs(60);

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
    let response = request(url, have)?;
    let status = response.status().as_u16();
    let begins = match status {
        200 => 0,
        206 => range_start(&response).unwrap_or(u64::MAX),
        416 => u64::MAX,
        _ => {
            let status = response.status();
            return failed(url, &format!("the server responded with {status}; {ALTERNATIVES}"));
        }
    };
    if begins != 0 && begins != have {
        // The server cannot resume at this byte.
        return match have {
            0 => failed(url, &format!("the server responded with {status} to a plain request")),
            _ => receive(url, file, part, 0, progress),
        };
    }
    if let Some(rest) = response.body().content_length()
        && begins.checked_add(rest) != Some(file.bytes)
    {
        let (all, problem) = (file.bytes, "this is another file");
        let offer = format!("the server offers {rest} bytes starting at byte {begins}");
        return failed(url, &format!("{offer}, but the file has {all}: {problem}"));
    }
    store(response, url, file, part, begins, progress)
}

fn request(url: &str, have: u64) -> Result<Response<Body>> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .user_agent(concat!("fedanchor/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .timeout_connect(Some(TIMEOUT))
        .timeout_recv_response(Some(TIMEOUT))
        .timeout_per_read(Some(TIMEOUT))
        .proxy(if is_loopback(url) { None } else { ureq::Proxy::try_from_env() })
        .build()
        .into();
    let mut request = agent.get(url);
    if have > 0 {
        request = request.header("Range", format!("bytes={have}-"));
    }
    request.call().or_else(|error| failed(url, &format!("no response ({error}); {ALTERNATIVES}")))
}

/// Whether the server is on this machine: requests to it bypass the proxy.
fn is_loopback(url: &str) -> bool {
    ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .filter_map(|host| url.strip_prefix("http://")?.strip_prefix(host))
        .any(|rest| rest.starts_with([':', '/']))
}

/// The number of the first byte in a header such as `Content-Range: bytes 100-199/200`.
fn range_start(response: &Response<Body>) -> Option<u64> {
    let value = response.headers().get("Content-Range")?.to_str().ok()?;
    value.trim().strip_prefix("bytes")?.trim_start().split('-').next()?.parse().ok()
}

/// Writes the body to the part, starting at byte `begins`.
fn store(
    response: Response<Body>,
    url: &str,
    file: &File,
    part: &Path,
    begins: u64,
    progress: Report,
) -> Result<()> {
    let cannot_write = |error| DataError::io(part, error);
    let mut options = fs::OpenOptions::new();
    let options = options.create(true);
    let mut to = if begins > 0 { options.append(true) } else { options.write(true).truncate(true) }
        .open(part)
        .map_err(cannot_write)?;
    // One byte more than expected is enough to detect too many.
    let mut body = response.into_body().into_reader().take(file.bytes - begins + 1);
    let mut piece = vec![0; PIECE];
    let mut done = begins;
    let interruption = loop {
        let total = file.bytes;
        progress(Progress { phase: Phase::Downloading, file: file.name, done, total });
        let count = match body.read(&mut piece) {
            Ok(0) => break "the connection was closed".into(),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => break error.to_string(),
        };
        done += count as u64;
        if done > file.bytes {
            drop(to);
            at(part, fs::remove_file)?;
            let more = format!("more than the expected {total} bytes: not this file");
            return failed(url, &format!("the server sent {more}"));
        }
        to.write_all(&piece[..count]).map_err(cannot_write)?;
    };
    if done == file.bytes {
        // Before it gets its name.
        return to.sync_all().map_err(cannot_write);
    }
    let advice = "run the same command again to resume";
    failed(url, &format!("{interruption} after {done} of {} bytes: {advice}", file.bytes))
}
