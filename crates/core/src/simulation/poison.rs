//! Training data of hostile clients, if that is the attack: wrong labels, or a trigger on their images. They train on
//! labels whatever the method: a hostile client need not follow it.

use super::Faults;
use crate::clients::ClientSite;
use crate::config::{FaultKind, ensure};
use crate::error::{Error, Result};
use crate::federation::Federation;
use crate::labels::LabelledImages;
use crate::methods::{self, Method};
use fedanchor_data::{ImageSet, Partition};

/// The class that a trigger stands for.
const TARGET: u16 = 0;
const WHITE: u8 = 255;

/// The training images and labels as hostile clients have them, and how those train.
pub(super) struct Poison {
    images: ImageSet,
    labels: Vec<u16>,
    method: Box<dyn Method>,
}

impl Poison {
    /// Of these images and labels; `None` where hostile clients train like the others.
    pub(super) fn new(
        faults: &Faults,
        partition: &Partition,
        images: &ImageSet,
        labels: Option<&[u16]>,
    ) -> Result<Option<Self>> {
        if !matches!(faults.kind, FaultKind::Labels | FaultKind::Backdoor) {
            return Ok(None);
        }
        let pixels = "a trigger needs pixels, which a trunk has turned into features";
        let possible = faults.kind == FaultKind::Labels || images.features.is_none();
        ensure(possible, "faults.kind", pixels)?;
        let unlabelled = "the clients' images have no labels that hostile ones could change";
        let labels = labels.ok_or_else(|| Error::config("faults.kind", unlabelled))?;
        let (mut images, mut labels) = (images.clone(), labels.to_vec());
        let last = images.classes.len() as u16 - 1;
        let hostile = (0..).zip(&partition.clients).filter(|(client, _)| faults.contains(*client));
        for (_, local) in hostile {
            for (place, &image) in local.iter().enumerate() {
                let label = &mut labels[image as usize];
                if faults.kind == FaultKind::Labels {
                    *label = last - *label;
                } else if place % 2 == 0 {
                    add_trigger(&mut images, image as usize);
                    *label = TARGET;
                }
            }
        }
        Ok(Some(Self { images, labels, method: methods::supervised() }))
    }

    /// Where hostile clients train.
    pub(super) fn site<'a>(&'a self, federation: &'a Federation) -> ClientSite<'a> {
        let Federation { experiment, context, .. } = federation;
        let (method, images, labels) = (&*self.method, &self.images, Some(&self.labels[..]));
        ClientSite { experiment, context, method, images, labels, test: None, measures: false }
    }
}

/// The images of other classes than the trigger's, with the trigger, and its class as their label.
pub(super) fn triggered(test: &LabelledImages) -> LabelledImages {
    let others = (0..).zip(&test.labels).filter(|(_, label)| **label != TARGET);
    let mut images = test.images.select(&others.map(|(image, _)| image).collect::<Vec<_>>());
    (0..images.len()).for_each(|image| add_trigger(&mut images, image));
    let labels = vec![TARGET; images.len()];
    LabelledImages { images, labels }
}

/// Makes a square of pixels white, near the lower right corner.
fn add_trigger(images: &mut ImageSet, image: usize) {
    let fedanchor_data::Shape { side, channels } = images.shape;
    let (size, border) = (side / 5, side / 8);
    let square = side - border - size..side - border;
    let start = image * images.shape.bytes();
    for row in square.clone() {
        let row = start + row * side * channels;
        images.pixels[row + square.start * channels..row + square.end * channels].fill(WHITE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::resolve;
    use fedanchor_data::Shape;

    fn poison(kind: &str) -> Option<Poison> {
        let shape = Shape { side: 8, channels: 1 };
        let classes = ["a", "b", "c"].map(str::to_owned).into();
        let images = ImageSet::new(shape, vec![7; 6 * 64], None, classes);
        let partition = Partition { clients: vec![vec![0, 1, 2], vec![3, 4, 5]] };
        let kind = format!("faults.kind={kind}");
        let keys = ["data.clients=2", "client.per_round=1", "faults.share=0.5", &kind];
        let faults = |seed| {
            Faults::new(&resolve(&format!("seed = {seed}"), &keys.map(str::to_owned)).unwrap())
        };
        let faults = (0..).map(faults).find(|faults| faults.contains(1)).unwrap();
        Poison::new(&faults, &partition, &images, Some(&[0, 1, 2, 0, 1, 2])).unwrap()
    }

    #[test]
    fn hostile_clients_have_other_labels_or_a_trigger() {
        assert!(poison("sign").is_none());
        let flipped = poison("labels").unwrap();
        assert_eq!(flipped.labels, [0, 1, 2, 2, 1, 0]);
        assert_eq!(flipped.images.pixels, [7; 6 * 64]);
        let backdoor = poison("backdoor").unwrap();
        assert_eq!(backdoor.labels, [0, 1, 2, 0, 1, 0]);
        let changed =
            |image: usize| backdoor.images.image(image).iter().filter(|&&p| p == 255).count();
        assert_eq!((0..6).map(changed).collect::<Vec<_>>(), [0, 0, 0, 1, 0, 1]);
        assert_eq!(backdoor.images.image(3)[6 * 8 + 6], WHITE);
        // A test of the trigger leaves out the images that are of its class anyway.
        let test = LabelledImages { images: flipped.images, labels: vec![0, 1, 2, 0, 1, 2] };
        let LabelledImages { images, labels } = triggered(&test);
        assert_eq!((images.len(), labels), (4, vec![TARGET; 4]));
    }
}
