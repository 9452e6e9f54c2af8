//! How far reading many pictures has come.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that is told, from any thread, how many of how many pictures are done. By default there is none.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Tell>>);

type Tell = dyn Fn(usize, usize) + Send + Sync;

impl Progress {
    /// Tells this function.
    pub fn new(tell: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    /// Counts so many pictures from 0.
    pub(crate) fn count(&self, total: usize) -> Count<'_> {
        Count { progress: self, done: AtomicUsize::new(0), total }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Progress(..)" } else { "Progress" })
    }
}

/// The pictures that are done.
pub(crate) struct Count<'a> {
    progress: &'a Progress,
    done: AtomicUsize,
    total: usize,
}

impl Count<'_> {
    /// Adds some.
    pub fn add(&self, count: usize) {
        if count > 0
            && let Some(tell) = &self.progress.0
        {
            tell(self.done.fetch_add(count, Ordering::Relaxed) + count, self.total);
        }
    }
}
