//! A server on a Unix socket, for processes of the same user.

use axum::Router;
use fedanchor::{Error, Result};
use std::future::IntoFuture;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

/// How long requests that are being answered hold up the end.
const GRACE: Duration = Duration::from_secs(3);

/// A server that runs until this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Socket {
    /// Serves on this path, which only the own user can open. A socket that nobody listens on is replaced.
    pub fn serve(path: &Path, router: Router) -> Result<Self> {
        let problem = |error: io::Error| Error::file(path, error);
        remove_stale(path)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(problem)?;
        let listener = {
            let _context = runtime.enter();
            bind_privately(path).map_err(problem)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let (end, ended) = oneshot::channel::<()>();
                let server = axum::serve(listener, router).with_graceful_shutdown(async {
                    let _ = stopped.await;
                    let _ = end.send(());
                });
                // What is being answered is answered, unless it takes too long.
                let too_long = async {
                    let _ = ended.await;
                    tokio::time::sleep(GRACE).await;
                };
                tokio::select! {
                    served = server.into_future() => {
                        if let Err(error) = served {
                            tracing::error!(%error, "the socket is no longer served");
                        }
                    }
                    () = too_long => {}
                }
            });
            runtime.shutdown_background();
        });
        Ok(Self { path: path.to_owned(), stop: Some(stop), thread: Some(thread) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Binds in a folder of its own that nobody else can enter, and moves the socket to its place once only the own
/// user can open it: there is no moment at which others could.
fn bind_privately(path: &Path) -> io::Result<UnixListener> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let private = path.with_file_name(format!(".{name}.{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&private)?;
    let aside = private.join("s");
    let bound = UnixListener::bind(&aside).and_then(|listener| {
        std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&aside, path)?;
        Ok(listener)
    });
    let _ = std::fs::remove_file(&aside);
    std::fs::remove_dir(&private)?;
    bound
}

/// Removes a socket that a killed process has left behind; anything else in its place is refused.
fn remove_stale(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::file(path, error)),
        Ok(there) if !there.file_type().is_socket() => {
            Err(Error::file(path, "exists and is no socket: choose another path with --socket"))
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
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let socket = Socket::serve(&path, Router::new()).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = Socket::serve(&path, Router::new()).unwrap_err().to_string();
        assert!(taken.contains("another process listens there"), "{taken}");
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        let refused = Socket::serve(&path, Router::new()).unwrap_err().to_string();
        assert!(refused.contains("is no socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    }
}
