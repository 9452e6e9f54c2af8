//! A server on a Unix socket, for processes of the same user.

use axum::Router;
use fedanchor::{Error, Result};
use std::future::IntoFuture;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// The kernel's limit on the address of a Unix socket, in bytes, without the final zero.
const LONGEST_PATH: usize = 107;

/// A path that belongs to this process. What connects to it waits until it is served.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    file: SocketFile,
}

/// A server that runs until this is dropped.
#[derive(Debug)]
pub struct Socket {
    file: SocketFile,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Is removed in the end.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Bound {
    /// Takes this path, which only its owner can open. A socket that nobody listens on is replaced.
    pub fn new(path: &Path) -> Result<Self> {
        remove_stale(path)?;
        let aside = Aside::of(path);
        let longest = LONGEST_PATH - aside.longer(path);
        let length = path.as_os_str().as_bytes().len();
        if length > longest {
            let problem = format!(
                "has {length} bytes, and the path of this socket may have at most {longest}: choose a shorter one \
                 with --socket"
            );
            return Err(Error::file(path, problem));
        }
        let listener = aside.bind(path).map_err(|error| Error::file(path, error))?;
        Ok(Self { listener, file: SocketFile(path.to_owned()) })
    }

    /// Serves on it. In the end, requests that are being answered are waited for, for at most `grace`.
    pub fn serve(self, router: Router, grace: Duration) -> Result<Socket> {
        let Self { listener, file } = self;
        let problem = |error: io::Error| Error::file(&file.0, error);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(problem)?;
        listener.set_nonblocking(true).map_err(problem)?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::UnixListener::from_std(listener).map_err(problem)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let (end, ended) = oneshot::channel::<()>();
                let server = axum::serve(listener, router).with_graceful_shutdown(async {
                    let _ = stopped.await;
                    let _ = end.send(());
                });
                let too_long = async {
                    let _ = ended.await;
                    tokio::time::sleep(grace).await;
                };
                tokio::select! {
                    served = server.into_future() => {
                        if let Err(error) = served {
                            tracing::error!(%error, "the socket is not served any longer");
                        }
                    }
                    () = too_long => {}
                }
            });
            runtime.shutdown_background();
        });
        Ok(Socket { file, stop: Some(stop), thread: Some(thread) })
    }
}

impl Socket {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.file.0
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket is bound in a folder of its own that nobody else can enter, and moved to its place once only its owner can
/// open it: there is no moment at which others could.
struct Aside {
    folder: PathBuf,
    socket: PathBuf,
}

impl Aside {
    fn of(path: &Path) -> Self {
        let folder = path.with_file_name(format!(".{:x}", std::process::id()));
        Self { socket: folder.join("s"), folder }
    }

    /// By how many bytes it is longer than the path itself.
    fn longer(&self, path: &Path) -> usize {
        let length = |path: &Path| path.as_os_str().as_bytes().len();
        length(&self.socket).saturating_sub(length(path))
    }

    fn bind(&self, path: &Path) -> io::Result<UnixListener> {
        std::fs::DirBuilder::new().mode(0o700).create(&self.folder)?;
        let bound = UnixListener::bind(&self.socket).and_then(|listener| {
            std::fs::set_permissions(&self.socket, std::fs::Permissions::from_mode(0o600))?;
            std::fs::rename(&self.socket, path)?;
            Ok(listener)
        });
        let _ = std::fs::remove_file(&self.socket);
        std::fs::remove_dir(&self.folder)?;
        bound
    }
}

/// Removes a socket that a killed process has left behind; anything else in its place is refused.
fn remove_stale(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::file(path, error)),
        Ok(there) if !there.file_type().is_socket() => {
            Err(Error::file(path, "exists and is not a socket: choose another path with --socket"))
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => Err(Error::file(
            path,
            "another process listens there: choose another path with --socket",
        )),
        Ok(_) => std::fs::remove_file(path).map_err(|error| Error::file(path, error)),
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
        // Taken from the moment it is bound, whether or not it is served.
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
