//! The commit of a checkout, and whether the files that the program is made from differ from it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders of a crate that are not part of the program.
const APART: [&str; 4] = ["tests", "benches", "examples", "fuzz"];

/// Where the code comes from.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// The commit, or `unknown`.
    pub commit: String,
    /// Whether tracked files of the program differ from it.
    pub changed: bool,
    /// Files and folders that say otherwise when they change. All of them exist: cargo runs a script again and again for
    /// one that does not.
    pub depends_on: Vec<PathBuf>,
}

impl Source {
    /// Of the repository in `root` as `git` knows it; without git, and outside a checkout, the one that is given, or
    /// unknown. An archive that was unpacked inside another repository does not have that repository's commit.
    pub fn find(git: &str, root: &Path, given: Option<&str>) -> Self {
        let given = given.map(str::trim).filter(|given| !given.is_empty());
        let source = Checkout { git, root }.source();
        source.unwrap_or_else(|| Self::without_git(given.unwrap_or("unknown")))
    }

    fn without_git(commit: &str) -> Self {
        Self { commit: commit.to_owned(), changed: false, depends_on: Vec::new() }
    }
}

/// A checkout and the program that knows it.
struct Checkout<'a> {
    git: &'a str,
    root: &'a Path,
}

impl Checkout<'_> {
    fn source(&self) -> Option<Source> {
        let top = self.ask(&["rev-parse", "--show-toplevel"])?;
        if Path::new(&top).canonicalize().ok()? != self.root.canonicalize().ok()? {
            return None;
        }
        let commit = self.ask(&["rev-parse", "--verify", "HEAD"])?;
        let sources = sources(self.root);
        let names = sources.iter().filter_map(|path| path.strip_prefix(self.root).ok()?.to_str());
        // Without the lock that would write to the index, on which this depends.
        let status = ["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"];
        let arguments: Vec<&str> = status.into_iter().chain(names).collect();
        let changed = !self.ask(&arguments)?.is_empty();
        let depends_on = self.files().into_iter().chain(sources).collect();
        Some(Source { commit, changed, depends_on })
    }

    /// The files of git that change with the commit: in a worktree, some are its own and some are shared.
    fn files(&self) -> Vec<PathBuf> {
        let file = |name: &str| {
            let path = self.root.join(self.ask(&["rev-parse", "--git-path", name])?);
            path.exists().then_some(path)
        };
        let branch = self.ask(&["symbolic-ref", "--quiet", "HEAD"]);
        // A branch that has no file of its own gets one with its next commit.
        let branch = branch.and_then(|name| file(&name)).or_else(|| file("refs/heads"));
        [file("HEAD"), branch, file("packed-refs"), file("index")].into_iter().flatten().collect()
    }

    /// What git says, without the line's end; `None` if it fails or is not installed.
    fn ask(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(self.git);
        command.arg("-C").arg(self.root).args(arguments);
        // Set while git runs a hook: of the repository that it runs for.
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(variable);
        }
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
    }
}

/// What the program is made from, as far as it is there.
fn sources(root: &Path) -> Vec<PathBuf> {
    let entries = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let whole = ["Cargo.toml", "Cargo.lock", ".cargo", "experiments/quick.toml"];
    let whole = whole.map(|name| root.join(name)).into_iter().filter(|path| path.exists());
    // A program of `examples` is the command line with a method of its own.
    let packages = entries(root.join("crates")).chain(entries(root.join("examples")));
    let parts = packages.flat_map(entries);
    let parts = parts.filter(|part| APART.iter().all(|name| !part.ends_with(name)));
    let mut found: Vec<PathBuf> = whole.chain(parts).collect();
    found.sort();
    found
}
