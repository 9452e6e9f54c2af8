//! Fetching from faulty servers, and unpacking malicious archives. Everything happens on the
//! loopback interface and in temporary folders, with a data set of a few kilobytes.

#![allow(clippy::unwrap_used)]

use fedanchor_data::catalog::{File, Published};
use fedanchor_data::fetch::{Phase, Progress, Source, get};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

/// How the server responds to requests for its only file.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Correctly, ranges included.
    Good,
    /// Announces the whole length and closes the connection after this many bytes of the body.
    BreaksOff(usize),
    /// Sends the whole file whatever range is requested.
    IgnoresRange,
    /// Responds with 416 to every range.
    RefusesRange,
    /// Responds with 206, but starts at the byte after the requested one.
    WrongRange,
    /// Sends no length, and continues after the end of the file.
    NeverStops,
    /// Responds with 404.
    NotFound,
}

/// (range header, bytes of body sent) of every request.
type Log = Vec<(Option<String>, usize)>;

struct Server {
    base: String,
    seen: Arc<Mutex<Log>>,
}

impl Server {
    /// Serves `content` at `/mirror/<anything>` until the test process ends.
    fn start(content: Vec<u8>, manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/mirror", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(connection) = connection else { break };
                // The client may close the connection on purpose: a failed write is not an error.
                let answered = answer(&connection, &content, manner, &log);
                drop(answered);
            }
        });
        Self { base, seen }
    }

    fn requests(&self) -> Log {
        self.seen.lock().unwrap().clone()
    }
}

fn answer(
    mut connection: &TcpStream,
    content: &[u8],
    manner: Manner,
    log: &Mutex<Log>,
) -> std::io::Result<()> {
    let mut range = None;
    for line in BufReader::new(connection).lines().take(100) {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("range: ") {
            range = Some(value.to_owned());
        }
    }
    let from: usize = range
        .as_deref()
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok())
        .unwrap_or(0);
    let (status, from) = match manner {
        Manner::NotFound => ("404 Not Found".into(), content.len()),
        Manner::RefusesRange if from > 0 => ("416 Range Not Satisfiable".into(), content.len()),
        Manner::IgnoresRange | Manner::NeverStops => ("200 OK".into(), 0),
        _ if from == 0 => ("200 OK".into(), 0),
        _ => {
            let from = from + usize::from(manner == Manner::WrongRange);
            let last = content.len() - 1;
            let range = format!("Content-Range: bytes {from}-{last}/{}", content.len());
            (format!("206 Partial Content\r\n{range}"), from)
        }
    };
    let mut body = content[from..].to_vec();
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    match manner {
        Manner::NeverStops => body.extend(vec![0; 1 << 20]),
        _ => head += &format!("Content-Length: {}\r\n", body.len()),
    }
    if let Manner::BreaksOff(after) = manner {
        body.truncate(after);
    }
    log.lock().unwrap().push((range, body.len()));
    connection.write_all(head.as_bytes())?;
    connection.write_all(b"\r\n")?;
    connection.write_all(&body)
}

fn sha256(content: &[u8]) -> &'static str {
    let sum: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    sum.leak()
}

/// An official file with this content.
fn official(name: &'static str, content: &[u8]) -> File {
    File { name, bytes: content.len() as u64, sha256: sha256(content) }
}

/// A data set of one file with this content.
fn entry(file: &'static str, content: &[u8]) -> Published {
    Published {
        name: "tiny",
        base_url: "http://127.0.0.1:1", // nothing listens there
        files: Vec::leak(vec![official(file, content)]),
        ..fedanchor_data::formats::cifar::CIFAR10
    }
}

fn content() -> Vec<u8> {
    (0..20_000u32).map(|i| (i * i % 251) as u8).collect()
}

fn gz(tar: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(tar).unwrap();
    encoder.finish().unwrap()
}

/// A tar archive of one entry. The name is written directly, since the builder rejects bad ones.
fn tar_of(name: &str, kind: tar::EntryType, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    if kind == tar::EntryType::Symlink {
        header.set_link_name("/etc").unwrap();
    }
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, content).unwrap();
    builder.into_inner().unwrap()
}

fn mirror(server: &Server) -> Source {
    Source::Mirror(server.base.clone())
}

fn quietly(entry: &Published, dir: &Path, source: Source) -> Result<PathBuf, String> {
    get(entry, dir, source, &mut |_| {}).map_err(|error| error.to_string())
}

/// Unpacks an archive given as a local file; returns the folder and the outcome.
fn unpacked(archive: &[u8]) -> (tempfile::TempDir, Result<PathBuf, String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set.tar.gz");
    fs::write(&path, archive).unwrap();
    let outcome =
        quietly(&entry("set.tar.gz", archive), &dir.path().join("data"), Source::Local(vec![path]));
    (dir, outcome)
}

#[test]
fn a_complete_download_leaves_only_the_complete_folder() {
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start(content(), Manner::Good));
    let entry = entry("set.mat", &content());
    let mut last = None;
    let mut phases = Vec::new();
    let mut progress = |progress: Progress| {
        assert_eq!((progress.file, progress.total), ("set.mat", 20_000));
        last = Some(progress.done);
        phases.push(progress.phase);
    };
    let folder = get(&entry, dir.path(), mirror(&server), &mut progress).unwrap();
    assert_eq!(folder, dir.path().join("tiny"));
    assert_eq!(fs::read(folder.join("set.mat")).unwrap(), content());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    phases.dedup();
    assert_eq!((phases, last), (vec![Phase::Downloading, Phase::Verifying], Some(20_000)));

    // The second time no request is made.
    assert_eq!(quietly(&entry, dir.path(), mirror(&server)).unwrap(), folder);
    assert_eq!(server.requests(), [(None, 20_000)]);
}

#[test]
fn a_broken_download_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let entry = entry("set.mat", &content());
    let bad = Server::start(content(), Manner::BreaksOff(7_000));
    let why = quietly(&entry, dir.path(), mirror(&bad)).unwrap_err();
    assert!(why.contains("after 7000 of 20000 bytes"), "{why}");
    assert!(why.contains("run the same command again to resume"), "{why}");
    assert!(!dir.path().join("tiny").exists());

    let good = Server::start(content(), Manner::Good);
    let folder = quietly(&entry, dir.path(), mirror(&good)).unwrap();
    assert_eq!(good.requests(), [(Some("bytes=7000-".into()), 13_000)]);
    assert_eq!(fs::read(folder.join("set.mat")).unwrap(), content());
}

/// Fetches with an existing part of `bytes` bytes; returns the requests the server received.
fn with_part(bytes: usize, manner: Manner) -> Log {
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start(content(), manner));
    let mut part = content();
    part.resize(bytes, 0);
    fs::create_dir(dir.path().join("tiny.incomplete")).unwrap();
    fs::write(dir.path().join("tiny.incomplete/set.mat.part"), part).unwrap();
    let folder = quietly(&entry("set.mat", &content()), dir.path(), mirror(&server)).unwrap();
    assert_eq!(fs::read(folder.join("set.mat")).unwrap(), content());
    server.requests()
}

#[test]
fn without_support_for_ranges_the_whole_file_is_requested() {
    let range = || Some("bytes=7000-".to_owned());
    assert_eq!(with_part(7_000, Manner::IgnoresRange), [(range(), 20_000), (None, 20_000)]);
    assert_eq!(with_part(7_000, Manner::RefusesRange), [(range(), 0), (None, 20_000)]);
    assert_eq!(with_part(7_000, Manner::WrongRange), [(range(), 12_999), (None, 20_000)]);
    assert_eq!(with_part(20_001, Manner::Good), [(None, 20_000)]);
    assert_eq!(with_part(20_000, Manner::Good), []);
}

#[test]
fn a_wrong_checksum_deletes_the_download() {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = content();
    wrong[123] ^= 1;
    let entry = entry("set.mat", &content());
    let why = quietly(&entry, dir.path(), mirror(&Server::start(wrong.clone(), Manner::Good)))
        .unwrap_err();
    assert!(why.contains(sha256(&content())) && why.contains(sha256(&wrong)), "{why}");
    assert!(why.contains("run the same command again to start over"), "{why}");
    assert!(!dir.path().join("tiny.incomplete/set.mat.part").exists());
    assert!(!dir.path().join("tiny").exists());
    quietly(&entry, dir.path(), mirror(&Server::start(content(), Manner::Good))).unwrap();
}

#[test]
fn the_wrong_file_is_not_downloaded() {
    let fetch = |content: Vec<u8>, manner| {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(content, manner);
        quietly(&entry("set.mat", &self::content()), dir.path(), mirror(&server)).unwrap_err()
    };
    let why = fetch(content(), Manner::NotFound);
    assert!(why.contains("/mirror/set.mat: the server responded with 404"), "{why}");
    let why = fetch(vec![0; 20_005], Manner::Good);
    assert!(why.contains("more than the expected 20000 bytes: this is another file"), "{why}");
    let why = fetch(vec![0; 19_999], Manner::Good);
    assert!(why.contains("only 19999 of the expected 20000 bytes"), "{why}");
    let why = fetch(content(), Manner::NeverStops);
    assert!(why.contains("more than the expected 20000 bytes"), "{why}");
    let dir = tempfile::tempdir().unwrap();
    let why = quietly(&entry("set.mat", &content()), dir.path(), Source::Official).unwrap_err();
    assert!(why.contains("http://127.0.0.1:1/set.mat: no response"), "{why}");
}

#[test]
fn archives_are_unpacked() {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o600);
    header.set_cksum();
    builder.append_data(&mut header.clone(), "./batches/one.bin", &b"first"[..]).unwrap();
    builder.append_data(&mut header, "batches/deep/two.bin", &b"other"[..]).unwrap();
    let archive = gz(&builder.into_inner().unwrap());
    let (dir, outcome) = unpacked(&archive);
    let folder = outcome.unwrap();
    assert_eq!(fs::read(folder.join("batches/one.bin")).unwrap(), b"first");
    assert_eq!(fs::read(folder.join("batches/deep/two.bin")).unwrap(), b"other");
    assert_eq!(fs::read_dir(dir.path().join("data")).unwrap().count(), 1);
    assert!(dir.path().join("set.tar.gz").exists(), "the user's file is kept");

    // The same over HTTP.
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(archive.clone(), Manner::Good);
    let folder = quietly(&entry("set.tar.gz", &archive), dir.path(), mirror(&server)).unwrap();
    assert_eq!(fs::read(folder.join("batches/one.bin")).unwrap(), b"first");
}

#[test]
fn malicious_archives_write_nothing_outside_the_folder() {
    use tar::EntryType::{Block, Link, Regular, Symlink};
    for (name, kind, complaint) in [
        ("../evil", Regular, "found a path outside it"),
        ("a/../../../evil", Regular, "found a path outside it"),
        ("/fedanchor-evil", Regular, "found a path outside it"),
        ("link", Symlink, "found a symbolic link"),
        ("link", Link, "found a hard link"),
        ("device", Block, "found a device"),
    ] {
        let (dir, outcome) = unpacked(&gz(&tar_of(name, kind, b"")));
        let why = outcome.unwrap_err();
        assert!(why.contains("set.tar.gz") && why.contains(name), "{why}");
        assert!(why.contains(complaint), "{why}");
        assert!(!dir.path().join("data/tiny").exists());
        assert!(!dir.path().join("data/evil").exists() && !dir.path().join("evil").exists());
    }
    assert!(!Path::new("/fedanchor-evil").exists());
}

#[test]
fn bombs_and_broken_archives_are_rejected() {
    let rejection = |archive: &[u8]| {
        let (dir, outcome) = unpacked(archive);
        assert!(!dir.path().join("data/tiny").exists());
        outcome.unwrap_err()
    };
    // 8 MiB of zeros in 8 KiB: more than 16 times the archive and a megabyte.
    let why = rejection(&gz(&tar_of("zeros", tar::EntryType::Regular, &vec![0; 8 << 20])));
    assert!(why.contains("bytes unpacked, found more"), "{why}");
    let mut many = tar::Builder::new(Vec::new());
    for number in 0..1001 {
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        many.append_data(&mut header, format!("{number}"), &b""[..]).unwrap();
    }
    let why = rejection(&gz(&many.into_inner().unwrap()));
    assert!(why.contains("entry `1000`: expected at most 1000 entries"), "{why}");

    let mut long = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    long.append_data(&mut header, "a/".repeat(50_000), &b""[..]).unwrap();
    let why = rejection(&gz(&long.into_inner().unwrap()));
    assert!(why.contains("entry 0: expected a name of at most 4096 bytes, found 100000"), "{why}");

    let whole = gz(&tar_of("file", tar::EntryType::Regular, &content()));
    for cut in [0, 5, 100, whole.len() / 2, whole.len() - 4] {
        let why = rejection(&whole[..cut]);
        assert!(why.contains("intact tar.gz archive"), "cut at {cut}: {why}");
    }
    rejection(b"<html>not an archive</html>");
    let twice = [
        &tar_of("f", tar::EntryType::Regular, b"1")[..512 * 2],
        &tar_of("f", tar::EntryType::Regular, b"2"),
    ]
    .concat();
    let why = rejection(&gz(&twice));
    assert!(why.contains("entry `f`: expected unique paths"), "{why}");
}

#[test]
fn local_files_are_recognised_by_content() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (content(), vec![7; 30]);
    let file = official;
    let entry = Published {
        files: Vec::leak(vec![file("one.mat", &one), file("two.mat", &two)]),
        ..entry("unused", b"")
    };
    let at = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let (first, second) = (at("renamed", &one), at("two.mat", &two));
    let data = |name: &str| dir.path().join(name);

    let why = quietly(&entry, &data("a"), Source::Local(vec![first.clone()])).unwrap_err();
    assert_eq!(why, "incomplete data set tiny: two.mat is not among the given files");
    let folder = quietly(&entry, &data("a"), Source::Local(vec![second, first])).unwrap();
    assert_eq!(fs::read(folder.join("one.mat")).unwrap(), one);
    assert_eq!(fs::read(folder.join("two.mat")).unwrap(), two);

    // A file of another length is not even read.
    let endless = fs::File::create(dir.path().join("endless")).unwrap();
    endless.set_len(1 << 40).unwrap();
    let why = quietly(&entry, &data("c"), Source::Local(vec![data("endless")])).unwrap_err();
    assert!(why.contains("found a file of 1099511627776 bytes"), "{why}");
    let wrong = at("one.mat", &vec![0; 20_000]);
    let why = quietly(&entry, &data("c"), Source::Local(vec![wrong])).unwrap_err();
    assert!(why.contains(sha256(&one)) && why.contains(sha256(&vec![0; 20_000])), "{why}");
    at("one.mat", &one);
    // A folder is searched for the official names.
    let folder = quietly(&entry, &data("d"), Source::Local(vec![dir.path().into()])).unwrap();
    assert_eq!(fs::read(folder.join("two.mat")).unwrap(), two);
    let why = quietly(&entry, &data("e"), Source::Local(vec![data("absent")])).unwrap_err();
    assert!(why.contains("absent"), "{why}");
}

#[test]
fn a_second_process_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tiny.incomplete")).unwrap();
    let lock = fs::File::create(dir.path().join("tiny.incomplete/lock")).unwrap();
    lock.lock().unwrap();
    let server = Server::start(content(), Manner::Good);
    let why = quietly(&entry("set.mat", &content()), dir.path(), mirror(&server)).unwrap_err();
    assert!(why.contains("another process"), "{why}");
    drop(lock);
    quietly(&entry("set.mat", &content()), dir.path(), mirror(&server)).unwrap();
}

/// Neither a forged file of the right length nor a link in the place of a download does harm.
#[test]
fn the_checksum_counts_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let file = File { sha256: sha256(b"another file"), ..official("set.mat", &content()) };
    let entry = Published { files: Vec::leak(vec![file]), ..entry("unused", b"") };
    let server = Server::start(content(), Manner::Good);
    let why = quietly(&entry, dir.path(), mirror(&server)).unwrap_err();
    assert!(why.contains("expected a file of 20000 bytes with SHA-256"), "{why}");

    let precious = dir.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    let staging = dir.path().join("tiny.incomplete");
    fs::create_dir_all(&staging).unwrap();
    std::os::unix::fs::symlink(&precious, staging.join("set.mat.part")).unwrap();
    let entry = self::entry("set.mat", &content());
    let server = Server::start(content(), Manner::Good);
    let folder = quietly(&entry, dir.path(), mirror(&server)).unwrap();
    assert_eq!(fs::read(folder.join("set.mat")).unwrap(), content());
    assert_eq!(fs::read(precious).unwrap(), b"precious");
}

/// Files in the staging folder under an official name are checked like downloads, and its lock is an ordinary file.
#[test]
fn what_is_staged_is_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let staging = dir.path().join("tiny.incomplete");
    fs::create_dir_all(&staging).unwrap();
    let entry = entry("set.mat", &content());
    let precious = dir.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, staging.join("lock")).unwrap();
    let server = Server::start(content(), Manner::Good);
    let why = quietly(&entry, dir.path(), mirror(&server)).unwrap_err();
    assert!(why.contains("lock") && why.contains("found a symbolic link"), "{why}");
    assert_eq!(fs::read(precious).unwrap(), b"precious");
    fs::remove_file(staging.join("lock")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(staging.join("lock")).status();
    assert!(made.unwrap().success());
    let why = quietly(&entry, dir.path(), mirror(&server)).unwrap_err();
    assert!(why.contains("lock") && why.contains("found a named pipe"), "{why}");
    fs::remove_file(staging.join("lock")).unwrap();

    for staged in [vec![0; 20_000], b"another length".to_vec()] {
        fs::create_dir_all(&staging).unwrap();
        fs::write(staging.join("set.mat"), staged).unwrap();
        let folder = quietly(&entry, dir.path(), mirror(&server)).unwrap();
        assert_eq!(fs::read(folder.join("set.mat")).unwrap(), content());
        fs::remove_dir_all(folder).unwrap();
    }
}
