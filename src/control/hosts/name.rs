//! What a service of another host is called.

use crate::control::names::{NameError, ServiceName};
use core::fmt;
use core::str::FromStr;
use std::string::{String, ToString};

/// How such a name begins.
pub const SCHEME: &str = "hamlyn://";

/// Longest name of a host, in bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// `hamlyn://host:port/service`, or `hamlyn://service`, whose place is found in a
/// [`directory`](super::directory).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName {
    place: Option<Place>,
    service: ServiceName,
}

/// `host:port`. The host is a name, an IPv4 address, or an IPv6 address in brackets; it is read from such
/// text (`"a.example:7000".parse()`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The host's name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A text that is no name of a service of another host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum HostNameError {
    /// Not in this form.
    #[error(
        "{0:?} is no name of a service of another host: that is hamlyn://host:port/service, or \
         hamlyn://service where there is a directory"
    )]
    Form(String),
    /// A place is not in its form.
    #[error("{0:?} is not host:port")]
    Place(String),
    /// The host is empty, too long, or has a character that none has.
    #[error(
        "the host of {0:?} is no name and no address: a name has 1 to 253 of a-z A-Z 0-9 . -, \
         and an IPv6 address is written in brackets"
    )]
    Host(String),
    /// The port is none.
    #[error("the port of {0:?} is none: it is a number from 1 to 65535")]
    Port(String),
    /// The service is none.
    #[error(transparent)]
    Service(#[from] NameError),
    /// A user's name, which means something on one host only.
    #[error("{0:?} names a user: between hosts there are no users, and a service is a name alone")]
    User(String),
}

impl HostName {
    /// Where it is; `None`: that is to be looked up.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The service there.
    pub fn service(&self) -> &str {
        self.service.name()
    }
}

impl Place {
    /// Of `host:port`; the error is what is wrong with `shown`, of which it is a part.
    pub(super) fn read(text: &str, shown: &str) -> Result<Self, HostNameError> {
        let form = || HostNameError::Form(shown.into());
        let (host, port) = text.rsplit_once(':').ok_or_else(form)?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse::<u16>().ok().filter(|port| digits && *port != 0);
        let port = port.ok_or_else(|| HostNameError::Port(shown.into()))?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<core::net::Ipv6Addr>().is_ok().then_some(address),
            None => {
                let allowed =
                    |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
                let is_name = (1..=HOST_BYTES_MAX).contains(&host.len())
                    && !host.starts_with(['-', '.'])
                    && host.bytes().all(allowed);
                is_name.then_some(host)
            }
        };
        let host = host.ok_or_else(|| HostNameError::Host(shown.into()))?.to_string();
        Ok(Self { host, port })
    }
}

impl FromStr for Place {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        // What is shown is cut.
        let shown = text.chars().take(400).collect::<String>();
        match Self::read(text, &shown) {
            Err(HostNameError::Form(shown)) => Err(HostNameError::Place(shown)),
            read => read,
        }
    }
}

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        // What is shown is cut.
        let shown = text.chars().take(400).collect::<String>();
        let Some(rest) = text.strip_prefix(SCHEME) else { return Err(HostNameError::Form(shown)) };
        let (place, service) = match rest.split_once('/') {
            Some((place, service)) => (Some(Place::read(place, &shown)?), service),
            None if rest.contains(':') => return Err(HostNameError::Form(shown)),
            None => (None, rest),
        };
        let service: ServiceName = service.parse()?;
        if service.user().is_some() {
            return Err(HostNameError::User(shown));
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

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in [
            "hamlyn://a.example:7000/quotes",
            "hamlyn://127.0.0.1:1/x",
            "hamlyn://[::1]:65535/x.y_z-1",
            "hamlyn://[2001:db8::7]:80/q",
            "hamlyn://quotes",
        ] {
            let name: HostName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
        let name: HostName = "hamlyn://[::1]:7000/x".parse().unwrap();
        let place = Place { host: "::1".into(), port: 7000 };
        assert_eq!((name.place(), name.service()), (Some(&place), "x"));
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
        ] {
            let error = text.parse::<HostName>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
