//! What a service of another host is called.

use crate::control::names::{NameError, ServiceName};
use core::fmt;
use core::str::FromStr;
use std::string::{String, ToString};

/// How such a name begins.
pub const SCHEME: &str = "hamlyn://";

/// Longest name of a host, in bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// `hamlyn://host:port/service`. The host is a name, an IPv4 address, or an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName {
    host: String,
    port: u16,
    service: ServiceName,
}

/// A text that is no name of a service of another host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostNameError {
    /// Not in this form.
    #[error("{0:?} is no name of a service of another host: that is hamlyn://host:port/service")]
    Form(String),
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
    /// The host's name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The service there.
    pub fn service(&self) -> &str {
        self.service.name()
    }
}

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        // What is shown is cut.
        let shown = || text.chars().take(400).collect::<String>();
        let form = || HostNameError::Form(shown());
        let rest = text.strip_prefix(SCHEME).ok_or_else(form)?;
        let (authority, service) = rest.split_once('/').ok_or_else(form)?;
        let (host, port) = authority.rsplit_once(':').ok_or_else(form)?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse::<u16>().ok().filter(|port| digits && *port != 0);
        let port = port.ok_or_else(|| HostNameError::Port(shown()))?;
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
        let host = host.ok_or_else(|| HostNameError::Host(shown()))?.to_string();
        let service: ServiceName = service.parse()?;
        if service.user().is_some() {
            return Err(HostNameError::User(shown()));
        }
        Ok(Self { host, port, service })
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, service } = self;
        match host.contains(':') {
            true => write!(f, "{SCHEME}[{host}]:{port}/{service}"),
            false => write!(f, "{SCHEME}{host}:{port}/{service}"),
        }
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
        ] {
            let name: HostName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
        let name: HostName = "hamlyn://[::1]:7000/x".parse().unwrap();
        assert_eq!((name.host(), name.port(), name.service()), ("::1", 7000, "x"));
    }

    #[test]
    fn what_is_no_name_says_what_is_wrong_with_it() {
        for (text, why) in [
            ("x", "hamlyn://host:port/service"),
            ("hamlyn://x", "hamlyn://host:port/service"),
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
