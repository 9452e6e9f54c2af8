//! Proposals as tasks for Label Studio, which shows each picture with the proposed class selected.

use crate::escape;
use crate::review::Proposal;
use serde_json::{Value, json};
use std::fmt::Write;

/// The name of the control for labels; that of the picture is `image`.
const LABEL: &str = "label";

/// The labelling interface of a project for these tasks.
pub fn label_studio_interface(classes: &[String]) -> String {
    let mut text = format!(
        "<View>\n  <Image name=\"image\" value=\"$image\"/>\n  <Choices name=\"{LABEL}\" toName=\"image\" \
         choice=\"single\" showInline=\"true\">\n"
    );
    for class in classes {
        let _ = writeln!(text, "    <Choice value=\"{}\"/>", escape::markup(class));
    }
    text + "  </Choices>\n</View>\n"
}

/// The tasks, in the order of the proposals. `paths` are those of the pictures, relative to the folder that Label
/// Studio serves, which sorts by the score of a prediction: that is the margin, and 0 where the heads differ, so that the
/// lowest are the most doubtful. Accepted labels are annotations.
pub fn label_studio_tasks(proposals: &[Proposal], paths: &[String], model: &str) -> String {
    let tasks = proposals.iter().zip(paths).map(|(one, path)| {
        let score = if one.agrees() { one.margin.clamp(0.0, 1.0) } else { 0.0 };
        let mut task = json!({
            "data": { "image": format!("/data/local-files/?d={}", escape::url(path)) },
            "predictions": [{ "model_version": model, "score": score, "result": [choice(&one.proposal)] }],
        });
        if !one.label.is_empty() {
            task["annotations"] = json!([{ "result": [choice(&one.label)] }]);
        }
        task.to_string()
    });
    format!("[\n{}\n]\n", tasks.collect::<Vec<_>>().join(",\n"))
}

fn choice(class: &str) -> Value {
    json!({
        "id": LABEL, "from_name": LABEL, "to_name": "image", "type": "choices", "value": { "choices": [class] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_what_label_studio_needs() {
        let proposal = |label: &str, classifier: &str| Proposal {
            path: "/photos/a b.png".to_owned(),
            label: label.to_owned(),
            proposal: "cat".to_owned(),
            score: 0.5,
            margin: 0.25,
            classifier: classifier.to_owned(),
            confidence: 0.75,
        };
        let proposals = [proposal("", "dog"), proposal("cat", "cat")];
        let paths = ["a b/ä&?.png", "c.png"].map(str::to_owned);
        let tasks = label_studio_tasks(&proposals, &paths, "run (fedanchor)");
        let tasks: Value = serde_json::from_str(&tasks).unwrap();
        assert_eq!(tasks[0]["data"]["image"], "/data/local-files/?d=a%20b/%C3%A4%26%3F.png");
        assert_eq!(tasks[0].get("annotations"), None);
        let prediction = &tasks[1]["predictions"][0];
        assert_eq!(
            (&prediction["score"], &prediction["model_version"]),
            (&json!(0.25), &json!("run (fedanchor)"))
        );
        assert_eq!(tasks[0]["predictions"][0]["score"], 0.0);
        let chosen = json!({
            "id": "label", "from_name": "label", "to_name": "image", "type": "choices",
            "value": {"choices": ["cat"]},
        });
        assert_eq!(
            (&prediction["result"][0], &tasks[1]["annotations"][0]["result"][0]),
            (&chosen, &chosen)
        );
        let interface = label_studio_interface(&["<a> & \"b\"".to_owned()]);
        assert!(
            interface.contains("    <Choice value=\"&lt;a&gt; &amp; &quot;b&quot;\"/>\n"),
            "{interface}"
        );
    }
}
