//! A server on a Unix socket, for processes of the same user.

use axum::Router;
use axum::serve::Listener;
use fedanchor::{Error, Result};
use std::fs::{self, DirBuilder, Permissions};
use std::future::IntoFuture;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The kernel's limit on the address of a Unix socket, in bytes, without the final zero.
const LONGEST_PATH: usize = 107;

/// A socket of this process. Connections wait until it is served.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    file: SocketFile,
}

/// A server that runs until this is dropped.
#[derive(Debug)]
pub struct Socket {
    // Stops first: pending requests are answered while the file is there.
    _server: Server,
    file: SocketFile,
}

/// A server of HTTP on a listener, with threads of its own.
#[derive(Debug)]
pub(crate) struct Server {
    grace: Duration,
    running: Option<(Runtime, JoinHandle<io::Result<()>>, oneshot::Sender<()>)>,
}

/// The file of a socket, which is removed on drop.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Bound {
    /// Binds this path, which only its owner can open. A socket on which nobody listens is replaced.
    pub fn new(path: &Path) -> Result<Self> {
        remove_stale(path)?;
        let folder = path.with_file_name(format!(".{:x}", std::process::id()));
        let length = |path: &Path| path.as_os_str().as_bytes().len();
        let longest = LONGEST_PATH - length(&folder.join("s")).saturating_sub(length(path));
        if length(path) > longest {
            let problem = format!(
                "has {} bytes, and the path of this socket may have at most {longest}: choose a shorter one with \
                 --socket",
                length(path)
            );
            return Err(Error::file(path, problem));
        }
        let listener = bind(path, &folder).map_err(|error| Error::file(path, error))?;
        Ok(Self { listener, file: SocketFile(path.to_owned()) })
    }

    /// Serves on it. At the end, pending requests have at most `grace` to be answered.
    pub fn serve(self, router: Router, grace: Duration) -> Result<Socket> {
        let Self { listener, file } = self;
        let problem = |error: io::Error| Error::file(&file.0, error);
        listener.set_nonblocking(true).map_err(problem)?;
        let listen = || tokio::net::UnixListener::from_std(listener);
        let server = Server::start(listen, router, grace).map_err(problem)?;
        Ok(Socket { _server: server, file })
    }
}

impl Server {
    /// Serves on what `listen` returns, which is called inside the server's runtime. At the end, pending requests have at
    /// most `grace` to be answered.
    pub(crate) fn start<L: Listener<Addr: std::fmt::Debug>>(
        listen: impl FnOnce() -> io::Result<L>,
        router: Router,
        grace: Duration,
    ) -> io::Result<Self> {
        let runtime =
            runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = {
            let _context = runtime.enter();
            listen()?
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let server = axum::serve(listener, router).with_graceful_shutdown(async {
            let _ = stopped.await;
        });
        let server = runtime.spawn(server.into_future());
        Ok(Self { grace, running: Some((runtime, server, stop)) })
    }
}

impl Socket {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.file.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((runtime, server, stop)) = self.running.take() {
            drop(stop);
            let _ = runtime.block_on(async { timeout(self.grace, server).await });
            runtime.shutdown_background();
        }
    }
}

/// Binds a socket in a new folder that nobody else can enter, and moves it to its path once only its owner can open it,
/// so that others never can.
fn bind(path: &Path, folder: &Path) -> io::Result<UnixListener> {
    DirBuilder::new().mode(0o700).create(folder)?;
    let socket = folder.join("s");
    let bound = UnixListener::bind(&socket).and_then(|listener| {
        fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        fs::rename(&socket, path)?;
        Ok(listener)
    });
    let _ = fs::remove_file(&socket);
    fs::remove_dir(folder)?;
    bound
}

/// Removes a socket that a killed process has left behind; refuses any other file.
fn remove_stale(path: &Path) -> Result<()> {
    let refuse = |problem| Err(Error::file(path, problem));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::file(path, error)),
        Ok(found) if !found.file_type().is_socket() => {
            refuse("exists and is not a socket: choose another path with --socket")
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            refuse("another process listens there: choose another path with --socket")
        }
        Ok(_) => fs::remove_file(path).map_err(|error| Error::file(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let bound = Bound::new(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Taken once it is bound, whether or not it is served.
        let taken = || Bound::new(&path).unwrap_err().to_string();
        assert!(taken().contains("another process listens there"), "{}", taken());
        let socket = bound.serve(Router::new(), Duration::ZERO).unwrap();
        assert!(taken().contains("another process listens there"), "{}", taken());
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        let refused = Bound::new(&path).unwrap_err().to_string();
        assert!(refused.contains("is not a socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_with_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let name = |length: usize| {
            let folder = folder.path();
            folder.join("s".repeat(length - 1 - folder.as_os_str().as_bytes().len()))
        };
        drop(Bound::new(&name(LONGEST_PATH)).unwrap());
        let refused = Bound::new(&name(LONGEST_PATH + 1)).unwrap_err().to_string();
        assert!(refused.contains("has 108 bytes") && refused.contains("at most 107"), "{refused}");
    }
}
