//! Which build of the program made what: in every file that holds numbers, and where a run is resumed with another build.

use crate::workspace::{SMALL, Workspace, lines, text};
use commit::Source;
use fedanchor_record::{Build, BuildRounds, Timing, files};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::AtomicBool;

#[path = "../../build/commit.rs"]
mod commit;

fn fedanchor(workspace: &Workspace, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").env("FEDANCHOR_CACHE", "");
    workspace.succeed(command.args(arguments))
}

fn contains(bytes: &[u8], wanted: &str) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

#[test]
fn every_file_with_numbers_names_the_build() {
    let (workspace, build) = (Workspace::new(), fedanchor_cli::build());
    assert_eq!(text(&fedanchor(&workspace, &["--version"]).stdout), format!("fedanchor {build}\n"));
    workspace.succeed(workspace.command("run", &[SMALL]).arg("--tensorboard"));
    let summary = workspace.summary("run");
    assert_eq!(summary.build, build);
    let rounds = BuildRounds { build: build.clone(), from_round: 0, to_round: 2 };
    assert_eq!(summary.builds, std::slice::from_ref(&rounds));
    let timings: Vec<Timing> = lines(&workspace.read("run", files::TIMINGS));
    assert!(timings.iter().all(|timing| timing.build == build), "{timings:?}");
    // As JSON in the header of a safetensors file.
    let header = format!("\\\"commit\\\":\\\"{}\\\"", build.commit);
    for file in [files::MODEL, "checkpoints/round-000002.checkpoint"] {
        let bytes = std::fs::read(workspace.at("run").join(file)).unwrap();
        assert!(contains(&bytes, &header), "{file}");
    }
    let events = std::fs::read_dir(workspace.at("run/tensorboard")).unwrap().next().unwrap();
    assert!(contains(&std::fs::read(events.unwrap().path()).unwrap(), &build.to_string()));
    fedanchor(&workspace, &["report", "run", "--out", "report"]);
    let page = std::fs::read(workspace.at("report/index.html")).unwrap();
    assert!(contains(&page, &build.to_string()));
    let verified = fedanchor(&workspace, &["verify", "run"]);
    assert!(text(&verified.stdout).contains(&format!("\n  {rounds}\n")), "{verified:?}");
}

/// The first two rounds are computed by this test, which says that it is another build.
#[test]
fn a_run_that_another_build_resumes_says_so() {
    let (workspace, now) = (Workspace::new(), fedanchor_cli::build());
    let before = Build { commit: "f00d".repeat(10), changed: true, ..now.clone() };
    before.clone().declare();
    let settings: Vec<String> = SMALL.iter().map(|setting| (*setting).to_owned()).collect();
    let experiment = fedanchor::resolve("preset = \"paper\"", &settings).unwrap();
    let out = workspace.at("run");
    fedanchor::run(
        &experiment,
        fedanchor::RunOptions {
            workers: Some(1),
            stop: &AtomicBool::new(false),
            ..fedanchor::RunOptions::new(&out)
        },
        &mut (),
    )
    .unwrap();

    let resumed = fedanchor(&workspace, &["run", "--resume", "run", "--set", "rounds=3"]);
    let note = format!("resumed with another build: {before} until round 2, {now} from here on");
    assert!(text(&resumed.stderr).contains(&note), "{resumed:?}");
    let records = workspace.records("run");
    assert_eq!(records[3].notes, [note]);
    assert!(records[..3].iter().all(|record| record.notes.is_empty()));
    let of = |build: &Build, from_round, to_round| BuildRounds {
        build: build.clone(),
        from_round,
        to_round,
    };
    assert_eq!(workspace.summary("run").builds, [of(&before, 0, 2), of(&now, 3, 3)]);
    let verified = fedanchor(&workspace, &["verify", "run"]);
    let lines = format!("\n  {}\n  {}\n", of(&before, 0, 2), of(&now, 3, 3));
    assert!(text(&verified.stdout).contains(&lines), "{verified:?}");

    // The same build once more has nothing to say.
    let again = fedanchor(&workspace, &["run", "--resume", "run", "--set", "rounds=4"]);
    assert!(!text(&again.stderr).contains("another build"), "{again:?}");
    assert_eq!(workspace.summary("run").builds, [of(&before, 0, 2), of(&now, 3, 4)]);
}

/// A repository with one commit, on a branch.
fn repository(root: &Path) {
    for name in ["crates/one/src/lib.rs", "crates/one/tests/all.rs", "Cargo.toml", "docs/page.md"] {
        let file = root.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "one").unwrap();
    }
    git(root, &["init", "--quiet", "--initial-branch", "some/branch"]);
    git(root, &["add", "."]);
    commit_all(root);
}

fn commit_all(root: &Path) {
    git(root, &["commit", "--quiet", "--all", "--allow-empty", "--message", "words"]);
}

fn git(root: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
    command.arg("-C").arg(root).args(identity).args(arguments);
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).trim_end().to_owned()
}

#[test]
fn the_commit_is_that_of_the_checkout() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("repository");
    repository(&root);
    let find = |root: &Path| {
        let Source { commit, changed, depends_on } = Source::find("git", root, None);
        assert!(depends_on.iter().all(|path| path.exists()), "{depends_on:?}");
        (commit, changed, depends_on)
    };
    let head = git(&root, &["rev-parse", "HEAD"]);
    let (commit, changed, depends_on) = find(&root);
    assert_eq!((commit.as_str(), changed), (head.as_str(), false));
    for name in ["HEAD", "refs/heads/some/branch", "index"] {
        assert!(depends_on.contains(&root.join(".git").join(name)), "{name}: {depends_on:?}");
    }
    assert!(depends_on.contains(&root.join("crates/one/src")));

    // Neither files that git does not know nor what the program is not made from.
    for name in ["crates/one/src/new.rs", "crates/one/tests/all.rs", "docs/page.md"] {
        std::fs::write(root.join(name), "two").unwrap();
    }
    assert!(!find(&root).1);
    std::fs::write(root.join("crates/one/src/lib.rs"), "two").unwrap();
    assert!(find(&root).1);
    git(&root, &["add", "crates/one/src/lib.rs"]);
    assert!(find(&root).1);
    commit_all(&root);
    let next = find(&root);
    assert!(next.0 != head && !next.1);

    // A worktree has its own commit, a shallow clone and packed references the same.
    let tree = folder.path().join("tree");
    git(&root, &["worktree", "add", "--quiet", "-b", "other", tree.to_str().unwrap()]);
    commit_all(&tree);
    let in_tree = find(&tree);
    assert_eq!((in_tree.0, in_tree.1), (git(&tree, &["rev-parse", "HEAD"]), false));
    assert!(in_tree.2.contains(&root.join(".git/refs/heads/other")), "{:?}", in_tree.2);
    let shallow = folder.path().join("shallow");
    let source = format!("file://{}", root.display());
    git(folder.path(), &["clone", "--quiet", "--depth", "1", &source, "shallow"]);
    assert_eq!(find(&shallow).0, next.0);
    git(&root, &["pack-refs", "--all"]);
    let packed = find(&root);
    assert_eq!(packed.0, next.0);
    assert!(packed.2.contains(&root.join(".git/refs/heads")), "{:?}", packed.2);
}

#[test]
fn without_a_checkout_the_commit_is_given_or_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("repository");
    repository(&root);
    let commit = |git: &str, root: &Path, given| Source::find(git, root, given).commit;
    // An archive, unpacked on its own and inside another repository.
    let [alone, inside] = [folder.path().join("archive"), root.join("archive")];
    for archive in [&alone, &inside] {
        std::fs::create_dir(archive).unwrap();
        assert_eq!(commit("git", archive, None), "unknown");
        assert_eq!(commit("git", archive, Some("0123abc")), "0123abc");
        assert_eq!(commit("git", archive, Some("")), "unknown");
    }
    assert_eq!(commit("no-such-git", &root, None), "unknown");
    assert_eq!(commit("no-such-git", &root, Some("0123abc\n")), "0123abc");
    // A checkout knows better than a variable that was left set.
    assert_eq!(commit("git", &root, Some("0123abc")), commit("git", &root, None));
    assert_ne!(commit("git", &root, None), "unknown");
}
