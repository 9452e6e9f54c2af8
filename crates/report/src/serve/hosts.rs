//! The host names that requests may be for.
//!
//! The owner of a page elsewhere can point a host name at this machine ("DNS rebinding"), and the page then reads the
//! answers as those of its own host. Its requests still carry that name. Ports are not compared: a tunnel may have another one at its
//! other end, and it is the name that such a page cannot choose.

use hyper::header::{HOST, HeaderMap};
use hyper::http::uri::{Authority, Uri};
use std::net::IpAddr;

/// The hosts that a server answers for.
#[derive(Debug)]
pub(super) struct Hosts {
    /// The host as the user gave it.
    name: String,
    address: IpAddr,
}

/// What a request's host is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ours,
    Foreign,
    /// None, several, or nothing that is a host.
    Malformed,
}

impl Hosts {
    /// Of a server on the address `HOST:PORT`, which is this IP address.
    pub(super) fn new(given: &str, address: IpAddr) -> Self {
        let name = given.rsplit_once(':').map_or(given, |(host, _)| host);
        Self { name: name.to_owned(), address: address.to_canonical() }
    }

    pub(super) fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Verdict {
        let mut named = headers.get_all(HOST).iter();
        let (Some(host), None) = (named.next(), named.next()) else { return Verdict::Malformed };
        let host = host.to_str().ok().filter(|host| !host.contains('@'));
        let Some(host) = host.and_then(|host| host.parse::<Authority>().ok()) else {
            return Verdict::Malformed;
        };
        // A request line with a whole address in it counts, too.
        let hosts = std::iter::once(host.host()).chain(uri.host());
        if hosts.into_iter().all(|host| self.includes(host)) {
            Verdict::Ours
        } else {
            Verdict::Foreign
        }
    }

    fn includes(&self, host: &str) -> bool {
        if ["localhost", &self.name].iter().any(|name| host.eq_ignore_ascii_case(name)) {
            return true;
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let Ok(address) = bare.parse::<IpAddr>() else { return false };
        let address = address.to_canonical();
        // Behind 0.0.0.0 is every address of this machine. No name can turn into an address here.
        address == self.address || address.is_loopback() || self.address.is_unspecified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(hosts: &Hosts, host: &str) -> Verdict {
        let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
        hosts.judge(&Uri::from_static("/"), &headers)
    }

    #[test]
    fn this_machine_is_known_by_its_addresses_and_given_name() {
        let local = Hosts::new("127.0.0.1:8080", "127.0.0.1".parse().unwrap());
        let lan = Hosts::new("lab-3:80", "192.168.1.7".parse().unwrap());
        let all = Hosts::new("[::]:80", "::".parse().unwrap());
        for (hosts, names) in [
            (
                &local,
                &["localhost", "LocalHost:8080", "localhost:9999", "127.0.0.1:8080", "[::1]"][..],
            ),
            (&lan, &["lab-3", "LAB-3:80", "192.168.1.7", "[::ffff:192.168.1.7]:80", "localhost"]),
            (&all, &["192.168.1.7:80", "[fe80::1]:80", "localhost:80"]),
        ] {
            for name in names {
                assert_eq!(judge(hosts, name), Verdict::Ours, "{name}");
            }
        }
    }

    #[test]
    fn others_are_foreign() {
        let local = Hosts::new("127.0.0.1:8080", "127.0.0.1".parse().unwrap());
        let all = Hosts::new("0.0.0.0:80", "0.0.0.0".parse().unwrap());
        for name in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ] {
            assert_eq!(judge(&local, name), Verdict::Foreign, "{name}");
            assert_eq!(judge(&all, name), Verdict::Foreign, "{name}");
        }
        assert_eq!(judge(&local, "192.168.1.7"), Verdict::Foreign);
        let headers = HeaderMap::from_iter([(HOST, "localhost".parse().unwrap())]);
        let absolute = Uri::from_static("http://evil.example/data.json");
        assert_eq!(local.judge(&absolute, &headers), Verdict::Foreign);
    }

    #[test]
    fn a_request_has_one_host() {
        let local = Hosts::new("127.0.0.1:8080", "127.0.0.1".parse().unwrap());
        assert_eq!(local.judge(&Uri::from_static("/"), &HeaderMap::new()), Verdict::Malformed);
        let mut headers = HeaderMap::new();
        headers.append(HOST, "localhost".parse().unwrap());
        headers.append(HOST, "evil.example".parse().unwrap());
        assert_eq!(local.judge(&Uri::from_static("/"), &headers), Verdict::Malformed);
        for name in ["", "evil.example@localhost", "a b", "local\u{80}host"] {
            let value = hyper::header::HeaderValue::from_bytes(name.as_bytes()).unwrap();
            let headers = HeaderMap::from_iter([(HOST, value)]);
            assert_eq!(local.judge(&Uri::from_static("/"), &headers), Verdict::Malformed, "{name}");
        }
    }
}
