//! Pseudo-labels of single images, for a person to look at.

use serde::{Deserialize, Serialize};

/// `samples.json`: images of the last round in which clients labelled theirs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// That round.
    pub round: u32,
    /// The images, by kind, the most telling first.
    pub samples: Vec<Sample>,
}

/// One image and its pseudo-label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Why it is shown.
    pub kind: SampleKind,
    /// The client that has it.
    pub client: u32,
    /// Its index among the training images, as in [`Assignment`](crate::Assignment).
    pub image: u32,
    /// The class of its pseudo-label.
    pub label: String,
    /// Its true class, where it is known.
    pub truth: Option<String>,
    /// The score of the pseudo-label.
    pub score: f32,
    /// What the score was compared with; `None` if all samples are kept (`softmatch`) or none is.
    pub threshold: Option<f32>,
    /// The image without augmentation: base64 of an 8-bit PNG file.
    pub png: String,
}

/// Why a sample is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleKind {
    /// Kept although its pseudo-label is wrong; the highest score first.
    Wrong,
    /// Kept, with the lowest score first, where nobody knows which labels are wrong.
    KeptDoubtful,
    /// Not kept, with the highest score first; where the true labels are known, only if its pseudo-label
    /// is right.
    LeftOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_as_documented() {
        let text = r#"{"round":3,"samples":[{"kind":"kept-doubtful","client":7,"image":41,
            "label":"cat","truth":null,"score":0.61,"threshold":0.6,"png":"AA=="}]}"#;
        let samples: Samples = serde_json::from_str(text).unwrap();
        let [sample] = &samples.samples[..] else { panic!("{samples:?}") };
        assert_eq!((samples.round, sample.kind, sample.image), (3, SampleKind::KeptDoubtful, 41));
        assert_eq!((&sample.truth, sample.score, sample.threshold), (&None, 0.61, Some(0.6)));
        assert_eq!(serde_json::to_string(&SampleKind::LeftOut).unwrap(), r#""left-out""#);
        let written = serde_json::to_string(&samples).unwrap();
        assert_eq!(written, text.split_whitespace().collect::<String>());
    }
}
