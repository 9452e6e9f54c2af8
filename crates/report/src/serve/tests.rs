use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;

const PAGE: &str = "<!doctype html><title>a page</title>";

struct Case {
    address: SocketAddr,
    site: Arc<Site>,
    serving: Serving,
}

/// A server on any free port of this machine.
fn serve(limits: Limits) -> Case {
    let site = Arc::new(Site::new(PAGE));
    let server = Server::bind("127.0.0.1:0").unwrap();
    let address = server.address().unwrap();
    let serving = server.start_with(Arc::clone(&site), limits).unwrap();
    Case { address, site, serving }
}

/// The head and the body of an answer.
struct Answer(String, String);

impl Answer {
    fn status(&self) -> &str {
        self.0.split(' ').nth(1).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Case {
    /// Sends bytes and reads until the server closes the connection.
    fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // A server that has heard enough may close the connection with an error.
        let mut answer = Vec::new();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
        Answer(head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str, headers: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"))
    }
}

#[test]
fn the_page_is_served() {
    let case = serve(LIMITS);
    let page = case.get("/", "");
    assert_eq!((page.status(), page.1.as_str()), ("200", PAGE));
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let head = case.send("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!((head.status(), head.1.as_str()), ("200", ""));
}

#[test]
fn the_page_is_sent_again_only_if_it_has_changed() {
    let case = serve(LIMITS);
    let first = case.get("/", "");
    let tag = first.header("etag").unwrap().to_owned();
    let ask = |tag: &str| case.get("/", &format!("If-None-Match: {tag}\r\n"));
    let unchanged = ask(&tag);
    assert_eq!((unchanged.status(), unchanged.1.as_str()), ("304", ""));
    assert_eq!(unchanged.header("etag"), Some(tag.as_str()));
    assert_eq!(ask(&format!("\"other\", W/{tag}")).status(), "304");
    case.site.publish("<title>round 2</title>");
    let changed = ask(&tag);
    assert_eq!((changed.status(), changed.1.as_str()), ("200", "<title>round 2</title>"));
    assert_ne!(changed.header("etag"), Some(tag.as_str()));
    case.site.publish(PAGE);
    assert_eq!(ask(&tag).status(), "304");
}

#[test]
fn nothing_else_is_served() {
    let case = serve(LIMITS);
    for path in [
        "/rounds.jsonl",
        "/data.json",
        "//",
        "/../rounds.jsonl",
        "/%2e%2e/Cargo.toml",
        "/index.html",
    ] {
        assert_eq!(case.get(path, "").status(), "404", "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let request = "/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nxx";
        let answer = case.send(&format!("{method} {request}"));
        assert_eq!(answer.status(), "405", "{method}");
        assert_eq!(answer.header("allow"), Some("GET,HEAD"));
    }
}

#[test]
fn foreign_hosts_are_refused() {
    let case = serve(LIMITS);
    for (host, status) in [
        ("Host: evil.example\r\n", "421"),
        ("Host: localhost.evil.example\r\n", "421"),
        ("Host: 127.0.0.1:1\r\n", "200"),
        ("Host: localhost\r\nHost: localhost\r\n", "400"),
        ("", "400"),
    ] {
        let answer = case.send(&format!("GET / HTTP/1.1\r\n{host}\r\n"));
        assert_eq!(answer.status(), status, "{host}");
        assert_eq!(answer.1.contains("html"), status == "200");
    }
    let absolute = "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(case.send(absolute).status(), "421");
}

#[test]
fn every_answer_has_the_headers_that_keep_others_out() {
    let case = serve(LIMITS);
    let foreign = case.send("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    for answer in [case.get("/", ""), case.get("/none", ""), foreign] {
        for (name, value) in HEADERS {
            assert_eq!(answer.header(name.as_str()), Some(value), "{}", answer.0);
        }
        // No page elsewhere may read it.
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let policy = HEADERS[0].1;
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("http"), "{policy}");
}

#[test]
fn requests_are_bounded() {
    let limits = Limits { header_time: Duration::from_millis(50), ..LIMITS };
    let case = serve(limits);
    let long = case.get("/", &format!("X-Long: {}\r\n", "x".repeat(20_000)));
    assert_eq!(long.status(), "431");
    let many = case.get("/", &"X-Many: x\r\n".repeat(100));
    assert_eq!(many.status(), "431");
    // Headers that do not end are not waited for.
    let mut slow = TcpStream::connect(case.address).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: local").unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest); // until the server closes the connection
    assert_eq!(case.get("/", "").status(), "200");
    // One request per connection.
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let twice = case.send(&request.repeat(2));
    assert_eq!(twice.1, PAGE);
}

/// Times that no test waits for.
const PATIENT: Limits = Limits {
    connections: 4,
    header_time: Duration::from_secs(3600),
    time: Duration::from_secs(3600),
};

impl Case {
    /// Opens a connection, sends this, and leaves it at that.
    fn leave(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// The page, or a failure instead of an endless wait.
    fn page_in_time(&self) -> String {
        let mut stream = self.leave("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_request_is_answered_despite_any_number_of_connections_that_never_end() {
    let case = serve(PATIENT);
    let slow = ["", "GET / HTTP/1.1\r\nHost: local", "GET / HTTP/1.1\r\nX-Slow: "];
    let slow: Vec<TcpStream> = (0..30).map(|number| case.leave(slow[number % 3])).collect();
    for _ in 0..3 {
        assert!(case.page_in_time().ends_with(PAGE));
    }
    drop(slow);
    assert!(case.page_in_time().ends_with(PAGE));
}

#[test]
fn readers_that_never_read_do_not_block_others() {
    let case = serve(PATIENT);
    // More than the buffers on the way hold.
    case.site.publish(vec![b' '; 64 << 20]);
    let ask = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let stuck: Vec<TcpStream> = (0..12).map(|_| case.leave(ask)).collect();
    assert!(case.page_in_time().len() > 64 << 20);
    drop(stuck);
}

#[test]
fn it_ends_at_once_also_in_the_middle_of_a_request() {
    let case = serve(LIMITS);
    let mut open = TcpStream::connect(case.address).unwrap();
    open.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let Case { address, serving, .. } = case;
    drop(serving);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn an_address_in_use_is_an_error() {
    let first = Server::bind("127.0.0.1:0").unwrap();
    let taken = first.address().unwrap().to_string();
    assert_eq!(Server::bind(&taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert!(Server::bind("no such address").is_err());
}
