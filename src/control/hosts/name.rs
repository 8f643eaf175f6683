//! The names of services of other hosts.

use crate::control::names::{NameError, SCHEME, ServiceName, is_of_other_host};
use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use rustls::pki_types::ServerName;
use std::string::String;

/// Most places of one service.
pub const PLACES_MAX: usize = 64;
/// Longest name of a host, in bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;
/// Bytes of an interface's name and of the zero behind it (IFNAMSIZ).
const INTERFACE_BYTES_MAX: usize = 16;

/// `hamlyn://host:port/service`, or `hamlyn://service`, whose place a
/// [`directory`](super::directory) finds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName {
    place: Option<Place>,
    service: ServiceName,
}

/// `host:port`. The host is a name, an IPv4 address, or an IPv6 address in brackets, with the
/// interface of a link-local one behind a `%` (`[fe80::1%eth0]:7000`, RFC 4007). Such text can be
/// parsed (`"a.example:7000".parse()`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The host's name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostName {
    /// The place; `None`: a directory has to find it.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The service there.
    pub fn service(&self) -> &str {
        self.service.name()
    }
}

impl Place {
    /// Reads `host:port`; the error is the fault of `shown`, of which `text` is a part.
    pub(super) fn read(text: &str, shown: &str) -> Result<Self, NameError> {
        let form = || NameError::HostForm(shown.into());
        let (host, port) = text.rsplit_once(':').ok_or_else(form)?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse::<u16>().ok().filter(|port| digits && *port != 0);
        let port = port.ok_or_else(|| NameError::Port(shown.into()))?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or(NO_BRACKET).and_then(in_brackets),
            None => name_or_v4(host),
        };
        let host = host.map_err(|why| NameError::Host { text: shown.into(), why })?;
        Ok(Self { host: host.into(), port })
    }
}

const NO_BRACKET: &str = "has a bracket that is not closed: an IPv6 address is written as [::1]";

/// An IPv6 address as it stands in brackets; the error is the fault of the host.
fn in_brackets(host: &str) -> Result<&str, &'static str> {
    let (address, interface) = match host.split_once('%') {
        Some((address, interface)) => (address, Some(interface)),
        None => (host, None),
    };
    let no_address = "is no IPv6 address: only those are written in brackets";
    let address: Ipv6Addr = address.parse().map_err(|_| no_address)?;
    match interface {
        // Without the interface the kernel connects to no such address.
        None if address.is_unicast_link_local() => {
            Err("is a link-local address, which needs the interface here behind it: [fe80::1%eth0]")
        }
        None => Ok(host),
        Some(name) => {
            let is_part = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '%' | '[' | ']');
            match (1..INTERFACE_BYTES_MAX).contains(&name.len()) && name.chars().all(is_part) {
                true => Ok(host),
                false => Err("has no name of an interface behind the %: [fe80::1%eth0]"),
            }
        }
    }
}

/// A host's name, or an IPv4 address; the error is its fault.
fn name_or_v4(host: &str) -> Result<&str, &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if host.is_empty() {
        return Err("is missing: that is hamlyn://host:port/service");
    }
    if host.contains('@') {
        return Err("names a user: between hosts there are no users");
    }
    if host.contains(':') {
        return Err("has a colon: an IPv6 address is written in brackets, as [::1]");
    }
    if !host.is_ascii() {
        return Err("has letters beyond ASCII: such a name is written as the DNS has it (xn--..)");
    }
    if !host.bytes().all(allowed) || host.len() > HOST_BYTES_MAX {
        return Err("is no name and no address: a name has 1 to 253 of a-z A-Z 0-9 . _ -");
    }
    // The system reads such a text as an address in an older form (inet_aton(3)); TLS does not.
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or_default();
    let hexadecimal = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit())
        || hexadecimal.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_number {
        let is_address = host.parse::<Ipv4Addr>().is_ok();
        let why = "is a number, or ends in one, and so is no name, and no address: an IPv4 address is four \
                   numbers from 0 to 255, as 127.0.0.1";
        return is_address.then_some(host).ok_or(why);
    }
    // TLS needs a valid name for the server.
    match ServerName::try_from(host) {
        Ok(_) => Ok(host),
        Err(_) => {
            Err("is no name: between its dots are 1 to 63 characters, and no - at either end")
        }
    }
}

impl FromStr for Place {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        // Error messages show a prefix only.
        let shown = text.chars().take(400).collect::<String>();
        match Self::read(text, &shown) {
            Err(NameError::HostForm(shown)) => Err(NameError::Place(shown)),
            read => read,
        }
    }
}

impl FromStr for HostName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        // Error messages show a prefix only.
        let shown = text.chars().take(400).collect::<String>();
        if !is_of_other_host(text) {
            return Err(NameError::HostForm(shown));
        }
        let rest = &text[SCHEME.len()..];
        let (place, service) = match rest.split_once('/') {
            Some((place, service)) => (Some(Place::read(place, &shown)?), service),
            None if rest.contains(':') => return Err(NameError::HostForm(shown)),
            None => (None, rest),
        };
        let service: ServiceName = service.parse()?;
        if service.user().is_some() {
            return Err(NameError::User(shown));
        }
        Ok(Self { place, service })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match host.contains(':') {
            true => write!(f, "[{host}]:{port}"),
            false => write!(f, "{host}:{port}"),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if let Some(place) = &self.place {
            write!(f, "{place}/")?;
        }
        write!(f, "{}", self.service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in [
            "hamlyn://a.example:7000/quotes",
            "hamlyn://127.0.0.1:1/x",
            "hamlyn://[::1]:65535/x.y_z-1",
            "hamlyn://[2001:db8::7]:80/q",
            "hamlyn://my_host:7000/x",
            "hamlyn://_rack-1.a_b.example.:7000/x",
            "hamlyn://[fe80::1%eth0]:7000/x",
            "hamlyn://[fe80::1%2]:7000/x",
            "hamlyn://7.example:7000/x",
            "hamlyn://quotes",
        ] {
            let name: HostName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
        let name: HostName = "hamlyn://[::1]:7000/x".parse().unwrap();
        let place = Place { host: "::1".into(), port: 7000 };
        assert_eq!((name.place(), name.service()), (Some(&place), "x"));
        // A scheme's letters may be of either case.
        for text in ["HAMLYN://a:1/x", "Hamlyn://a:1/x"] {
            assert_eq!(text.parse::<HostName>().unwrap().to_string(), "hamlyn://a:1/x");
        }
    }

    #[test]
    fn what_is_no_name_says_what_is_wrong_with_it() {
        for (text, why) in [
            ("x", "hamlyn://host:port/service"),
            ("hamlyn://", "empty"),
            ("hamlyn://x:1", "hamlyn://host:port/service"),
            ("hamlyn://ann@b", "names a user"),
            ("hamlyn://x/y", "hamlyn://host:port/service"),
            ("hamlyn://x:0/y", "1 to 65535"),
            ("hamlyn://x:65536/y", "1 to 65535"),
            ("hamlyn://x:+1/y", "1 to 65535"),
            ("hamlyn://:1/y", "host"),
            ("hamlyn://::1:1/y", "brackets"),
            ("hamlyn://[x]:1/y", "brackets"),
            ("hamlyn://-x:1/y", "host"),
            ("hamlyn://x y:1/y", "host"),
            ("hamlyn://x:1/", "empty"),
            ("hamlyn://x:1/a/b", "allowed are"),
            ("hamlyn://x:1/ann@b", "names a user"),
            ("hamlyn://ann@x:1/y", "no users"),
            ("hamlyn://ann:secret@x:1/y", "no users"),
            ("hamlyn://7:1/y", "four numbers from 0 to 255"),
            ("hamlyn://2130706433:1/y", "four numbers from 0 to 255"),
            ("hamlyn://0x7f000001:1/y", "four numbers from 0 to 255"),
            ("hamlyn://127.1:1/y", "four numbers from 0 to 255"),
            ("hamlyn://127.0.0.01:1/y", "four numbers from 0 to 255"),
            ("hamlyn://127.0.0.256:1/y", "four numbers from 0 to 255"),
            ("hamlyn://rack.7:1/y", "four numbers from 0 to 255"),
            ("hamlyn://[fe80::1]:1/y", "[fe80::1%eth0]"),
            ("hamlyn://[fe80::1%]:1/y", "name of an interface"),
            ("hamlyn://[fe80::1%an-interface-of-too-long-a-name]:1/y", "name of an interface"),
            ("hamlyn://[fe80::1:1/y", "not closed"),
            ("hamlyn://fe80::1%eth0:1/y", "brackets"),
            ("hamlyn://[127.0.0.1]:1/y", "only those are written in brackets"),
            ("hamlyn://b\u{fc}cher.example:1/y", "xn--"),
            ("hamlyn://a..b:1/y", "between its dots"),
            ("hamlyn://a-.b:1/y", "between its dots"),
            ("hamlyn://*.example:1/y", "a-z A-Z 0-9 . _ -"),
            ("hamlyn://x%20y:1/y", "a-z A-Z 0-9 . _ -"),
            ("hamlyn:///y", "hamlyn://host:port/service"),
            ("hamlyn://x:1", "hamlyn://host:port/service"),
            ("hamlyn://x:1/y?z=1", "allowed are"),
            ("hamlyn:/x:1/y", "hamlyn://host:port/service"),
        ] {
            let error = text.parse::<HostName>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let long = std::format!("hamlyn://{}.example:1/y", "x".repeat(64));
        assert!(long.parse::<HostName>().unwrap_err().to_string().contains("1 to 63"));
    }

    // Such a text is read as the name of a service of this host.
    #[test]
    fn an_address_with_another_scheme_or_none_says_how_one_of_another_host_is_written() {
        for (text, why) in [
            ("tcp://a.example:7000/x", "nothing is connected to by tcp://"),
            ("tls://user@a.example:7000/x", "nothing is connected to by tls://"),
            (
                "hamlyn+tls://a.example:7000/a-name-that-is-longer-than-that-of-any-service",
                "by hamlyn+tls://",
            ),
            ("unix:///run/x", "by unix://"),
            ("a.example:7000/x", "hamlyn://host:port/service"),
            ("a.example:7000", "hamlyn://host:port/service"),
            ("hamlyn:x", "hamlyn://host:port/service"),
            ("/run/hamlyn/x", "hamlyn://host:port/service"),
        ] {
            assert!(!is_of_other_host(text), "{text}");
            let error = text.parse::<ServiceName>().unwrap_err().to_string();
            assert!(
                error.contains(why) && error.contains("hamlyn://host:port/service"),
                "{text}: {error}"
            );
        }
    }
}
