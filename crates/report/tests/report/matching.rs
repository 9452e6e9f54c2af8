//! Which published number a row gets. The expected ones are those of the paper's tables.

use crate::folders::Folders;

const SKEWED: (&str, &str) = ("alpha = 1000.0", "alpha = 0.1");
const RESNET: (&str, &str) = ("wrn28x2", "resnet18");
const SVHN: (&str, &str) = ("name = \"cifar10\"", "name = \"svhn\"");
const ANCHORS: (&str, &str) = ("anchors = 500", "anchors = 1000");
const SERVER_MIXUP: (&str, &str) = ("server_mixup = false", "server_mixup = true");
const NO_CLIENT_MIXUP: (&str, &str) = ("client_mixup = true", "client_mixup = false");
const NO_CONTRASTIVE: (&str, &str) =
    ("[method.contrastive]\nepochs = 1", "[method.contrastive]\nepochs = 0");

/// The published number of a run with these changes, and the notes of the table.
fn printed(changes: &[(&str, &str)]) -> (Option<(f64, f64)>, Vec<String>) {
    let folders = Folders::new();
    folders.run("a", 0, 80.0, changes);
    let table = folders.table();
    let [row] = &table.rows[..] else { panic!("{table:?}") };
    (row.published.map(|published| (published.mean, published.std)), table.notes())
}

fn number(changes: &[(&str, &str)]) -> Option<(f64, f64)> {
    printed(changes).0
}

/// The default run with another method, with only the given switches.
fn method(settings: &str) -> Option<(f64, f64)> {
    let all = "name = \"fedanchor\"\nthreshold = 0.6\nclient_mixup = true\nserver_mixup = false\n\n\
               [method.contrastive]\nepochs = 1\n";
    number(&[(all, settings)])
}

#[test]
fn fedanchor_and_its_mix_variant_have_different_numbers() {
    assert_eq!(number(&[]), Some((81.73, 0.43)));
    assert_eq!(number(&[SERVER_MIXUP]), Some((81.16, 0.43)));
    assert_eq!(number(&[RESNET]), Some((85.94, 0.11)));
    assert_eq!(number(&[RESNET, SERVER_MIXUP]), Some((85.87, 0.25)));
    assert_eq!(number(&[SKEWED]), Some((63.38, 0.64)));
    assert_eq!(number(&[SKEWED, SERVER_MIXUP]), Some((64.96, 0.27)));
}

#[test]
fn ablations_are_matched_by_their_switches() {
    assert_eq!(number(&[SKEWED, NO_CLIENT_MIXUP]), Some((63.15, 0.15)));
    assert_eq!(number(&[SKEWED, NO_CLIENT_MIXUP, SERVER_MIXUP]), Some((66.07, 0.50)));
    assert_eq!(number(&[SKEWED, RESNET, NO_CONTRASTIVE]), Some((70.90, 0.03)));
    // Not in the paper.
    assert_eq!(number(&[NO_CLIENT_MIXUP]), None);
    assert_eq!(number(&[SKEWED, NO_CONTRASTIVE]), None);
    assert_eq!(number(&[SKEWED, RESNET, NO_CONTRASTIVE, SERVER_MIXUP]), None);
}

#[test]
fn other_methods_are_matched_by_name() {
    assert_eq!(method("name = \"supervised\""), Some((84.48, 0.48)));
    assert_eq!(method("name = \"fedavg-fixmatch\""), Some((54.50, 1.60)));
    assert_eq!(method("name = \"fedcon\""), Some((53.25, 1.28)));
    assert_eq!(method("name = \"semifl\"\nclient_mixup = true"), Some((67.29, 2.98)));
    assert_eq!(method("name = \"semifl\"\nclient_mixup = false"), None);
    assert_eq!(method("name = \"server-only\""), None);
    assert_eq!(method("name = \"fedmatch\""), None);
    // The paper has several numbers for FedAnchor, so its switches must be set.
    assert_eq!(method("name = \"fedanchor\""), None);
}

#[test]
fn the_setting_must_be_the_papers() {
    assert_eq!(
        number(&[("kind = \"lda\"\nalpha = 1000.0", "kind = \"iid\"")]),
        Some((81.73, 0.43))
    );
    assert_eq!(number(&[("kind = \"lda\"", "kind = \"dirichlet\""), SKEWED]), None);
    let classes = ("kind = \"lda\"\nalpha = 1000.0", "kind = \"classes\"\nper_client = 2");
    assert_eq!(number(&[classes]), None);
    assert_eq!(number(&[("alpha = 1000.0", "alpha = 1.0")]), None);
    assert_eq!(number(&[ANCHORS]), None);
    assert_eq!(number(&[SVHN]), None);
    assert_eq!(number(&[("wrn28x2", "small")]), None);
    // The preset and other keys do not matter.
    let changes = [("\"paper\"", "\"semifl\""), ("batch = 10", "batch = 32")];
    assert_eq!(number(&changes), Some((81.73, 0.43)));
}

#[test]
fn other_rounds_than_the_papers_are_noted() {
    let (number, notes) = printed(&[("rounds = 500", "rounds = 40")]);
    assert_eq!(number, Some((81.73, 0.43)));
    assert_eq!(notes, ["[1] published after 500 rounds, ours after 40"]);
    // No note where there is no published number.
    assert_eq!(printed(&[("rounds = 500", "rounds = 40"), SVHN]), (None, vec![]));
}

#[test]
fn where_the_papers_tables_disagree_both_numbers_are_shown() {
    let (number, notes) = printed(&[SVHN, ANCHORS, SKEWED, SERVER_MIXUP]);
    assert_eq!(number, Some((86.09, 0.06)));
    let disagreement = "[1] table 3 of the paper gives 86.96 ± 0.08 for the same setting";
    assert_eq!(notes, [disagreement, &format!("[2] {CENTRALISED}")]);
    let plain = printed(&[SVHN, ANCHORS, SKEWED]);
    assert_eq!(plain, (Some((86.39, 0.33)), vec![format!("[1] {CENTRALISED}")]));
}

const CENTRALISED: &str =
    "Diao et al. (SemiFL) report 97.7 for FixMatch on one machine with as many labels";

/// What other papers report under their own recipes is said, and is no published number of this experiment.
#[test]
fn other_papers_are_quoted() {
    const FEW: (&str, &str) = ("anchors = 500", "anchors = 250");
    const FEDANCHOR: &str = "name = \"fedanchor\"";
    let unequal = ("\"lda\"\nalpha = 1000.0", "\"dirichlet\"\nalpha = 0.1");
    let notes = |changes: &[(&str, &str)]| printed(changes).1.join("\n");
    let semifl = (FEDANCHOR, "name = \"semifl\"");
    let found = notes(&[FEW, unequal, semifl]);
    assert!(
        found.contains(
            "report 63.0 after 800 rounds, with their recipe and clients of unequal size"
        )
    );
    assert!(found.contains("report 94.9 for FixMatch on one machine"), "{found}");
    assert!(
        notes(&[FEW, semifl])
            .contains("report 88.2 after 800 rounds, with their recipe and even clients")
    );
    // Of another method only what needs no clients, and of true labels only theirs, for any number of anchors.
    let found = notes(&[FEW, unequal]);
    assert!(found.contains("94.9") && !found.contains("63.0"), "{found}");
    let found = notes(&[unequal, (FEDANCHOR, "name = \"supervised\"")]);
    assert!(found.contains("85.0") && !found.contains("FixMatch"), "{found}");
    assert!(!notes(&[RESNET, FEW]).contains("report"));
}
