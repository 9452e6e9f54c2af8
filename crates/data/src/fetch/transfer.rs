//! One file over HTTP: resumable, bounded by the length the catalogue promises, verified.
//!
//! The length and the checksum are known beforehand, so the server is trusted with nothing: not to
//! honour a range, not to stop in time, not to send the right bytes.

use super::{PIECE, Phase, Progress, Report, describe, digest};
use crate::catalog::File;
use crate::{DataError, Result};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;
use ureq::Body;
use ureq::http::Response;

/// How long a server may take to answer, and then to send the next piece.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes sure that the verified file lies at `to`; its presence is the proof that it is verified.
pub(super) fn transfer(url: &str, file: &File, to: &Path, progress: Report) -> Result<()> {
    if to.is_file() {
        return Ok(());
    }
    let part = to.with_file_name(format!("{}.part", file.name));
    let have = match fs::metadata(&part) {
        Ok(metadata) if metadata.len() <= file.bytes => metadata.len(),
        Ok(_) => 0, // longer than the file can be: not a part of it
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(DataError::io(&part, error)),
    };
    if have < file.bytes {
        receive(url, file, &part, have, progress)?;
    }
    let (bytes, md5) = digest(&part, file.name, progress)?;
    if bytes != file.bytes || md5 != file.md5 {
        fs::remove_file(&part).map_err(|error| DataError::io(&part, error))?;
        return Err(failed(
            url,
            format!(
                "expected {}, found {}; what arrived has been deleted, so running the same command \
                 again starts afresh",
                describe("a file", file.bytes, file.md5),
                describe("one", bytes, &md5)
            ),
        ));
    }
    fs::rename(&part, to).map_err(|error| DataError::io(to, error))
}

fn failed(url: &str, reason: String) -> DataError {
    DataError::Download { url: url.into(), reason }
}

/// Receives what is missing after the first `have` bytes of the part.
fn receive(url: &str, file: &File, part: &Path, have: u64, progress: Report) -> Result<()> {
    let response = request(url, have)?;
    let status = response.status().as_u16();
    let begins = match status {
        200 => 0,
        206 => range_start(&response).unwrap_or(u64::MAX),
        416 => u64::MAX,
        _ => {
            return Err(failed(
                url,
                format!(
                    "the server answered {}; another address (--mirror) or a local copy (--from) will do as well",
                    response.status()
                ),
            ));
        }
    };
    if begins != 0 && begins != have {
        // The server cannot go on from where we are.
        return match have {
            0 => Err(failed(url, format!("the server answered {status} to a plain request"))),
            _ => receive(url, file, part, 0, progress),
        };
    }
    if let Some(rest) = response.body().content_length()
        && begins.checked_add(rest) != Some(file.bytes)
    {
        return Err(failed(
            url,
            format!(
                "the server offers {rest} bytes from byte {begins} on, but the file has {}: this is \
                 not the file expected",
                file.bytes
            ),
        ));
    }
    store(response, url, file, part, begins, progress)
}

fn request(url: &str, have: u64) -> Result<Response<Body>> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .user_agent(concat!("fedanchor/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE))
        .proxy(if is_loopback(url) { None } else { ureq::Proxy::try_from_env() })
        .build()
        .into();
    let mut request = agent.get(url);
    if have > 0 {
        request = request.header("Range", format!("bytes={have}-"));
    }
    request.call().map_err(|error| {
        failed(url, format!("no answer ({error}); another address (--mirror) or a local copy (--from) will do as well"))
    })
}

/// A server on this machine is not reached through the proxy of the environment.
fn is_loopback(url: &str) -> bool {
    ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .filter_map(|host| url.strip_prefix("http://")?.strip_prefix(host))
        .any(|rest| rest.starts_with([':', '/']))
}

/// The first byte number of `Content-Range: bytes 100-199/200`.
fn range_start(response: &Response<Body>) -> Option<u64> {
    let value = response.headers().get("Content-Range")?.to_str().ok()?;
    value.trim().strip_prefix("bytes")?.trim_start().split('-').next()?.parse().ok()
}

/// Writes the body into the part from byte `begins` on.
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
    // One byte more than expected is enough to know that there are too many.
    let mut body = response.into_body().into_reader().take(file.bytes - begins + 1);
    let mut piece = vec![0; PIECE];
    let mut done = begins;
    let broken_off = loop {
        let total = file.bytes;
        progress(Progress { phase: Phase::Downloading, file: file.name, done, total });
        let count = match body.read(&mut piece) {
            Ok(0) => break "the connection ended".into(),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => break error.to_string(),
        };
        done += count as u64;
        if done > file.bytes {
            drop(to);
            fs::remove_file(part).map_err(cannot_write)?;
            let why =
                format!("the server sends more than the {total} bytes expected: not this file");
            return Err(failed(url, why));
        }
        to.write_all(&piece[..count]).map_err(cannot_write)?;
    };
    if done == file.bytes {
        return Ok(());
    }
    Err(failed(
        url,
        format!(
            "{broken_off} after {done} of {} bytes; running the same command again goes on from there",
            file.bytes
        ),
    ))
}
