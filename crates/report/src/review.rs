//! A page on which a person reviews labels that a model proposes: every picture with its label, its score
//! and the nearest anchors. Labels can be changed on the page, which then writes a new CSV file. All of
//! it is one file, without a server and without anything from elsewhere.

use crate::escape;
use crate::page::fill;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use std::cmp::Ordering;
use std::fmt::Write;

/// One picture and what a model says about it.
#[derive(Debug, Clone, Serialize)]
pub struct Proposal {
    /// Where the picture is, as written to the CSV file.
    pub path: String,
    /// The label that was accepted; empty until a person has reviewed it.
    pub label: String,
    /// The proposed label: the class whose anchors are nearest.
    pub proposal: String,
    /// The average cosine with the anchors of that class.
    pub score: f64,
    /// The distance to the score of the second class.
    pub margin: f64,
    /// The classification head's class.
    pub classifier: String,
    /// Its probability, from 0 to 1.
    pub confidence: f64,
}

impl Proposal {
    /// Whether both heads propose the same class.
    pub fn agrees(&self) -> bool {
        self.proposal == self.classifier
    }

    /// The order by doubt: first proposals on which the heads differ, and among equals the smallest margin first.
    pub fn by_doubt(&self, other: &Self) -> Ordering {
        self.agrees().cmp(&other.agrees()).then(self.margin.total_cmp(&other.margin))
    }
}

/// A picture on the page.
#[derive(Debug)]
pub struct Shown {
    /// The bytes of a JPEG file.
    pub picture: Vec<u8>,
    /// The nearest anchors: JPEG file, class and cosine.
    pub anchors: Vec<(Vec<u8>, String, f64)>,
}

/// The page: `shown` are the first of the proposals, which are sorted by doubt.
pub fn review_page(
    title: &str,
    classes: &[String],
    proposals: &[Proposal],
    shown: &[Shown],
) -> String {
    let mut rows = String::new();
    for (at, (proposal, shown)) in proposals.iter().zip(shown).enumerate() {
        let mut anchors = String::new();
        for (picture, class, cosine) in &shown.anchors {
            let _ = write!(
                anchors,
                "<figure><img src=\"{}\" alt=\"\"><figcaption>{}<br>{cosine:.2}</figcaption></figure>",
                data_url(picture),
                escape::markup(class)
            );
        }
        let differs = if proposal.agrees() { "" } else { " class=\"differs\"" };
        let _ = writeln!(
            rows,
            "<tr{differs}><td><img class=\"picture\" src=\"{}\" alt=\"\"></td>\
             <td><select data-at=\"{at}\"></select><div class=\"path\">{}</div></td>\
             <td>{:.2}</td><td>{:.2}</td><td>{} ({:.0} %)</td><td class=\"anchors\">{anchors}</td></tr>",
            data_url(&shown.picture),
            escape::markup(&proposal.path),
            proposal.score,
            proposal.margin,
            escape::markup(&proposal.classifier),
            100.0 * proposal.confidence,
        );
    }
    let differ = proposals.iter().filter(|proposal| !proposal.agrees()).count();
    fill(include_str!("page/review.html"), |place| match place {
        "title" => escape::markup(title),
        "count" => proposals.len().to_string(),
        "differ" => differ.to_string(),
        "shown" => shown.len().min(proposals.len()).to_string(),
        "rows" => rows.clone(),
        "classes" => script(&classes),
        "all" => script(&proposals),
        "head" => HEAD.to_owned(),
        other => other.to_owned(),
    })
}

const HEAD: &str = "path,label,proposal,score,margin,classifier,confidence";

/// The same as a CSV file: all proposals, in the order given.
pub fn review_csv(proposals: &[Proposal]) -> String {
    let lines = proposals.iter().map(|one| {
        let [path, label, proposal, classifier] =
            [&one.path, &one.label, &one.proposal, &one.classifier]
                .map(|name| escape::csv_name(name));
        let [score, margin, confidence] =
            [one.score, one.margin, one.confidence].map(|number| number.to_string());
        vec![path, label, proposal, score, margin, classifier, confidence]
    });
    escape::csv(HEAD.split(','), lines)
}

fn data_url(jpeg: &[u8]) -> String {
    format!("data:image/jpeg;base64,{}", STANDARD.encode(jpeg))
}

/// A value as JavaScript that cannot end the script it stands in.
fn script(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "[]".to_owned()).replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(path: &str, proposed: &str, margin: f64, classifier: &str) -> Proposal {
        let (path, label) = (path.to_owned(), String::new());
        let (proposal, classifier) = (proposed.to_owned(), classifier.to_owned());
        Proposal { path, label, proposal, score: 0.5, margin, classifier, confidence: 0.75 }
    }

    #[test]
    fn the_most_doubtful_come_first() {
        let mut all = [
            proposal("sure", "cat", 0.5, "cat"),
            proposal("close", "cat", 0.1, "cat"),
            proposal("differ", "cat", 0.4, "dog"),
        ];
        all.sort_by(Proposal::by_doubt);
        assert_eq!(all.map(|one| one.path), ["differ", "close", "sure"]);
    }

    #[test]
    fn names_cannot_break_the_page_or_the_file() {
        let nasty = "a,\"b\"</script><script>alert(1)</script>.png";
        let all = [proposal(nasty, "cat", 0.1, "cat")];
        let csv = review_csv(&all);
        assert!(
            csv.starts_with(
                "path,label,proposal,score,margin,classifier,confidence\n\"a,\"\"b\"\"<"
            )
        );
        let shown = [Shown { picture: vec![1, 2, 3], anchors: vec![(vec![4], "<i>".into(), 0.9)] }];
        let page = review_page("labels", &["cat".to_owned()], &all, &shown);
        assert_eq!(page.matches("</script>").count(), 1);
        assert!(page.contains("content=\"default-src 'none'; img-src data:; "), "{page}");
        let formula = [proposal("=1+1.png", "-cat", 0.1, "@dog")];
        let csv = review_csv(&formula);
        assert!(csv.ends_with("\n'=1+1.png,,'-cat,0.5,0.1,'@dog,0.75\n"), "{csv}");
        assert!(page.contains("&lt;i&gt;") && page.contains("data:image/jpeg;base64,AQID"));
    }
}
