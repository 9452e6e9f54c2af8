//! The exact output of each format.

use crate::folders::{Folders, Made};
use fedanchor_report::{Table, render};

/// Two seeds of FedAnchor, two of its mix variant with fewer rounds, one supervised run, one run on
/// a data set whose name needs escaping, and one that was stopped.
fn example() -> Folders {
    let folders = Folders::new();
    let supervised = ("name = \"fedanchor\"", "name = \"supervised\"");
    let mix = ("server_mixup = false", "server_mixup = true");
    let short = ("rounds = 500", "rounds = 50");
    let other = ("name = \"cifar10\"", "name = \"my_|set, 50%\"");
    folders.run("anchor/seed0", 0, 80.0, &[]);
    folders.run("anchor/seed1", 1, 82.0, &[]);
    folders.run("mix/seed0", 0, 81.5, &[mix, short]);
    folders.run("mix/seed1", 1, 81.75, &[mix, short]);
    folders.run("supervised", 0, 84.479, &[supervised]);
    folders.run("other", 0, 9.5, &[other]);
    folders.make("stopped", Made { changes: &[], last: 50.0, best: 50.0, rounds: Some(12) });
    folders
}

fn rendered(folders: &Folders, render: fn(&Table) -> String) -> String {
    folders.relative(&render(&folders.table()))
}

#[test]
fn text() {
    let wanted = r#"same in all rows: model wrn28x2, anchors 500, partition LDA 1000, preset paper

data          method      settings                               seeds  final          best          published     difference  note
-----------------------------------------------------------------------------------------------------------------------------------
cifar10       supervised                                             1   84.48         85.48         84.48 ± 0.48  +0.00       1
cifar10       fedanchor   rounds=50, method.server_mixup=true        2  *81.63 ± 0.18  82.63 ± 0.18  81.16 ± 0.43  +0.47       2
cifar10       fedanchor   rounds=500, method.server_mixup=false      2   81.00 ± 1.41  82.00 ± 1.41  81.73 ± 0.43  −0.73
my_|set, 50%  fedanchor                                              1   9.50          10.50

final, best: test accuracy in percent, mean ± sample standard deviation over seeds; best is optimistic because its round is chosen on the test images
published: Qiu et al., FedAnchor, arXiv 2402.10191, tables 1 to 3; difference: final minus published
*: highest final mean for the same data, model, anchors and partition, excluding supervised
[1] Diao et al. (SemiFL) report 94.3 after 800 rounds, with their recipe and even clients
[2] published after 500 rounds, ours after 50
not in the table: RUNS/stopped: stopped after 12 of 500 rounds
"#;
    assert_eq!(rendered(&example(), render::text), wanted);
}

#[test]
fn markdown() {
    let wanted = r#"| data | model | anchors | partition | method | preset | settings | seeds | final | best | published | difference | note |
| --- | --- | ---: | --- | --- | --- | --- | ---: | --- | --- | --- | --- | --- |
| cifar10 | wrn28x2 | 500 | LDA 1000 | supervised | paper |  | 1 | 84.48 | 85.48 | 84.48 ± 0.48 | +0.00 | 1 |
| cifar10 | wrn28x2 | 500 | LDA 1000 | fedanchor | paper | rounds=50, method.server_mixup=true | 2 | **81.63 ± 0.18** | 82.63 ± 0.18 | 81.16 ± 0.43 | +0.47 | 2 |
| cifar10 | wrn28x2 | 500 | LDA 1000 | fedanchor | paper | rounds=500, method.server_mixup=false | 2 | 81.00 ± 1.41 | 82.00 ± 1.41 | 81.73 ± 0.43 | −0.73 |  |
| my_\|set, 50% | wrn28x2 | 500 | LDA 1000 | fedanchor | paper |  | 1 | 9.50 | 10.50 |  |  |  |

- final, best: test accuracy in percent, mean ± sample standard deviation over seeds; best is optimistic because its round is chosen on the test images
- published: Qiu et al., FedAnchor, arXiv 2402.10191, tables 1 to 3; difference: final minus published
- bold: highest final mean for the same data, model, anchors and partition, excluding supervised
- [1] Diao et al. (SemiFL) report 94.3 after 800 rounds, with their recipe and even clients
- [2] published after 500 rounds, ours after 50
- not in the table: RUNS/stopped: stopped after 12 of 500 rounds
"#;
    assert_eq!(rendered(&example(), render::markdown), wanted);
}

#[test]
fn csv() {
    let wanted = r#"data,model,anchors,partition,method,preset,settings,rounds,seeds,final_mean,final_std,best_mean,best_std,anchors_alone_mean,anchors_alone_std,published_mean,published_std,difference,notes
cifar10,wrn28x2,500,LDA 1000,supervised,paper,,500,1,84.479,,85.479,,,,84.48,0.48,-0.001,1
cifar10,wrn28x2,500,LDA 1000,fedanchor,paper,"rounds=50, method.server_mixup=true",50,2,81.625,0.176777,82.625,0.176777,,,81.16,0.43,0.465,2
cifar10,wrn28x2,500,LDA 1000,fedanchor,paper,"rounds=500, method.server_mixup=false",500,2,81,1.414214,82,1.414214,,,81.73,0.43,-0.73,
"my_|set, 50%",wrn28x2,500,LDA 1000,fedanchor,paper,,500,1,9.5,,10.5,,,,,,,
"#;
    assert_eq!(rendered(&example(), render::csv), wanted);
}

#[test]
fn json() {
    let text = rendered(&example(), render::json);
    let table: serde_json::Value = serde_json::from_str(&text).unwrap();
    let wanted = serde_json::json!({
        "data": "cifar10", "model": "wrn28x2", "anchors": 500,
        "partition": { "kind": "lda", "alpha": 1000.0 },
        "method": "fedanchor", "preset": "paper",
        "settings": "rounds=50, method.server_mixup=true", "rounds": 50, "seeds": 2,
        // (81.5 + 81.75) / 2, and the root of 2 * 0.125^2, with all digits.
        "final": { "mean": 81.625, "std": 0.031_25_f64.sqrt() },
        "best": { "mean": 82.625, "std": 0.031_25_f64.sqrt() },
        "anchors_alone": null,
        "published": { "table": 2, "mean": 81.16, "std": 0.43 },
        "difference": 81.625 - 81.16,
        "leads": true,
        "notes": ["published after 500 rounds, ours after 50"],
    });
    assert_eq!(table["rows"][1], wanted);
    assert_eq!(table["rows"].as_array().unwrap().len(), 4);
    assert_eq!(table["rows"][3]["published"], serde_json::Value::Null);
    let stopped = "RUNS/stopped: stopped after 12 of 500 rounds";
    assert_eq!(table["left_out"], serde_json::json!([stopped]));
}

#[test]
fn latex() {
    let wanted = r#"\begin{tabular}{llrllllrllll}
\toprule
data & model & anchors & partition & method & preset & settings & seeds & final & best & published & difference \\
\midrule
cifar10 & wrn28x2 & 500 & LDA 1000 & supervised & paper &  & 1 & 84.48 & 85.48 & 84.48 $\pm$ 0.48 & +0.00 \\ % [1]
cifar10 & wrn28x2 & 500 & LDA 1000 & fedanchor & paper & rounds=50, method.server\_mixup=true & 2 & 81.63 $\pm$ 0.18 & 82.63 $\pm$ 0.18 & 81.16 $\pm$ 0.43 & +0.47 \\ % [2]
cifar10 & wrn28x2 & 500 & LDA 1000 & fedanchor & paper & rounds=500, method.server\_mixup=false & 2 & 81.00 $\pm$ 1.41 & 82.00 $\pm$ 1.41 & 81.73 $\pm$ 0.43 & $-$0.73 \\
my\_|set, 50\% & wrn28x2 & 500 & LDA 1000 & fedanchor & paper &  & 1 & 9.50 & 10.50 &  &  \\
\bottomrule
\end{tabular}
% final, best: test accuracy in percent, mean ± sample standard deviation over seeds; best is optimistic because its round is chosen on the test images
% published: Qiu et al., FedAnchor, arXiv 2402.10191, tables 1 to 3; difference: final minus published
% [1] Diao et al. (SemiFL) report 94.3 after 800 rounds, with their recipe and even clients
% [2] published after 500 rounds, ours after 50
% not in the table: RUNS/stopped: stopped after 12 of 500 rounds
"#;
    assert_eq!(rendered(&example(), render::latex), wanted);
}

#[test]
fn an_empty_table_has_a_header_and_notes() {
    let folders = Folders::new();
    folders.make("a", Made { changes: &[], last: 0.0, best: 0.0, rounds: None });
    let text = rendered(&folders, render::text);
    assert!(text.starts_with("data  model  anchors"), "{text}");
    assert!(
        text.ends_with("RUNS/a: summary.json is missing: still running, or failed\n"),
        "{text}"
    );
    assert_eq!(rendered(&folders, render::csv).lines().count(), 1);
}
