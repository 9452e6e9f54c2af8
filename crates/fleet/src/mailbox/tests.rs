use super::*;
use std::io::Write;

const NOW: Duration = Duration::ZERO;

fn opened(folder: &Path) -> Mailbox {
    let mailbox = Mailbox::new(folder);
    mailbox.open().unwrap();
    mailbox
}

fn poll(session: &str, nodes: &[&str]) -> Poll {
    let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
    Poll { protocol: 1, session: session.to_owned(), nodes, keys: BTreeMap::new(), holds: None }
}

fn ids(work: &Work) -> Vec<u64> {
    work.requests.iter().map(|order| order.id).collect()
}

fn reply(mailbox: &Mailbox, id: u64, body: &[u8]) -> bool {
    let (spooled, mut file) = mailbox.spool().unwrap();
    file.write_all(body).unwrap();
    mailbox.deliver(id, Reply::Answer(200, spooled))
}

/// Simulates the passing of time by setting timestamps back.
#[test]
fn a_transport_and_nodes_that_are_gone_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox = opened(&folder.path().join("replies"));
    assert!(!mailbox.has_transport());
    let there = mailbox.post("1", "/", Vec::new(), None, 1);
    let gone = mailbox.post("2", "/", Vec::new(), None, 1);
    let work = mailbox.work(&poll("a", &["1"]), NOW).unwrap();
    assert_eq!(ids(&work), [there]);
    assert!(mailbox.has_transport());
    let long = Duration::from_secs(5);
    assert!(mailbox.undeliverable(long).is_empty());
    let back = |time: &mut Option<Instant>, by: Duration| *time = Some(time.unwrap() - by);
    back(&mut mailbox.lock().requests.get_mut(&gone).unwrap().missing, long);
    assert_eq!(mailbox.undeliverable(long), [gone]);
    // It was away, and is back.
    assert_eq!(ids(&mailbox.work(&poll("a", &["1", "2"]), NOW).unwrap()), [gone]);
    assert!(mailbox.undeliverable(long).is_empty());
    back(&mut mailbox.lock().last_poll, SILENCE);
    assert!(!mailbox.has_transport());
}

#[test]
fn a_request_is_taken_once_and_answered_once() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox = opened(&folder.path().join("replies"));
    let id = mailbox.post("7", "/v1/join", vec![Bytes::from_static(b"who?")], None, 100);
    let work = |session, nodes: &[&str]| mailbox.work(&poll(session, nodes), NOW);
    // A node that is not connected is not asked.
    assert_eq!(work("a", &["8"]).unwrap().state, "wait");
    let found = work("a", &["7", "8"]).unwrap();
    assert_eq!((found.state, ids(&found)), ("work", vec![id]));
    assert_eq!(work("a", &["7", "8"]).unwrap().state, "wait");
    assert_eq!(mailbox.body(id).unwrap(), [&b"who?"[..]]);
    // Another transport takes it again, and the one before it is refused.
    assert_eq!(ids(&work("b", &["7"]).unwrap()), [id]);
    assert_eq!((work("a", &["7"]), work("b", &["7"]).unwrap().state), (None, "wait"));
    let all = BTreeSet::from([id]);
    assert_eq!(mailbox.next_reply(&all, NOW), None);
    assert!(reply(&mailbox, id, b"me"));
    assert!(!reply(&mailbox, id, b"me again"));
    assert!(!mailbox.deliver(id, Reply::Failure("too late".to_owned())));
    let (_, Arrived { reply, .. }) = mailbox.next_reply(&all, NOW).unwrap();
    let Reply::Answer(200, body) = reply else { panic!() };
    assert_eq!(body.prefix(9).unwrap(), b"me");
}

/// A response to a poll is lost: its requests are handed out again.
#[test]
fn work_that_has_not_reached_the_transport_is_handed_out_again() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox = opened(&folder.path().join("replies"));
    let post = || mailbox.post("7", "/v1/train", Vec::new(), None, 100);
    let (held, lost) = (post(), post());
    let work = |holds: &[u64]| {
        let holds = Some(holds.iter().copied().collect());
        ids(&mailbox.work(&Poll { holds, ..poll("a", &["7"]) }, NOW).unwrap())
    };
    assert_eq!(work(&[]), [held, lost]);
    assert_eq!(work(&[held]), [lost]);
    assert!(work(&[held, lost]).is_empty());
}

/// A cancelled request keeps its node busy for as long as the transport holds it. The transport is told to forget
/// requests that were forgotten here, and those of an earlier coordinator.
#[test]
fn the_transport_is_told_what_to_forget() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox = opened(&folder.path().join("replies"));
    let post = || mailbox.post("7", "/v1/train", Vec::new(), None, 100);
    let (waited, slow, lost) = (post(), post(), post());
    let forget = |holds: &[u64]| {
        let holds = Some(holds.iter().copied().collect());
        mailbox.work(&Poll { holds, ..poll("a", &["7"]) }, NOW).unwrap().forget
    };
    forget(&[]);
    mailbox.cancel(slow);
    mailbox.forget(lost);
    assert_eq!(forget(&[1, waited, slow, lost]), [1, lost]);
    assert_eq!(mailbox.cancelled().into_keys().collect::<Vec<_>>(), [slow]);
    assert!(forget(&[waited]).is_empty());
    assert!(mailbox.cancelled().is_empty());
}

/// Of a reply that is delivered twice at the same time, one copy counts, and it is complete.
#[test]
fn two_replies_at_once_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox = opened(&folder.path().join("replies"));
    let id = mailbox.post("7", "/v1/train", Vec::new(), None, 100);
    let (one, mut first) = mailbox.spool().unwrap();
    let (other, mut second) = mailbox.spool().unwrap();
    first.write_all(b"fir").unwrap();
    second.write_all(b"second").unwrap();
    assert!(mailbox.deliver(id, Reply::Answer(200, other)));
    first.write_all(b"st").unwrap();
    assert!(!mailbox.deliver(id, Reply::Answer(200, one)));
    let (_, Arrived { reply, .. }) = mailbox.next_reply(&BTreeSet::from([id]), NOW).unwrap();
    let Reply::Answer(200, body) = reply else { panic!() };
    assert_eq!(body.prefix(9).unwrap(), b"second");
}

/// While one transport waits for work, another takes over.
#[test]
fn a_transport_that_waits_is_told_that_it_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox = opened(&folder.path().join("replies"));
    let long = Duration::from_secs(60);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| mailbox.work(&poll("a", &["7"]), long));
        while mailbox.lock().session.is_none() {
            std::thread::yield_now();
        }
        assert_eq!(mailbox.work(&poll("b", &["7"]), NOW).unwrap().state, "wait");
        assert_eq!(waiting.join().unwrap(), None);
    });
}

#[test]
fn a_cancelled_request_has_no_reply_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("replies");
    let mailbox = opened(&place);
    let post = || mailbox.post("7", "/v1/train", Vec::new(), None, 100);
    let (early, late) = (post(), post());
    assert!(reply(&mailbox, early, b"x"));
    [early, late].into_iter().for_each(|id| mailbox.cancel(id));
    assert!(!reply(&mailbox, late, b"x"));
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    assert_eq!(mailbox.body(late), None);
    // Other files than replies are removed neither at the start nor at the end.
    drop(mailbox);
    assert!(!place.exists());
    std::fs::create_dir(&place).unwrap();
    for name in ["5.reply", "thesis.txt"] {
        std::fs::write(place.join(name), "x").unwrap();
    }
    let mailbox = opened(&place);
    assert!(!place.join("5.reply").exists());
    drop(mailbox);
    assert!(place.join("thesis.txt").exists());
}

#[test]
fn every_poll_learns_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox = opened(&folder.path().join("replies"));
    mailbox.end(false, "no".to_owned(), Duration::from_secs(60)); // there is no transport
    let work = mailbox.work(&poll("a", &[]), NOW).unwrap();
    assert_eq!((work.state, work.ok, &work.message[..]), ("done", false, "no"));
}
