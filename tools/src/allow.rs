//! The peers that a service of this command lets in: users of this host, or other hosts by their
//! proved identity.

use hamlyn::Config;
use hamlyn::control::Access;

/// The peers that a receiver lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allow {
    User,
    Anyone,
    Group(u32),
    /// This user, and other hosts, by the names in their certificates.
    Hosts(Vec<String>),
}

impl Allow {
    /// The library's type for it.
    pub fn access(&self) -> Access {
        match self {
            Self::User | Self::Hosts(_) => Access::SameUser,
            Self::Anyone => Access::Anyone,
            Self::Group(gid) => Access::Group(*gid),
        }
    }

    /// The settings of a process whose services let these peers in.
    pub fn settings(&self, mut config: Config) -> Config {
        if let Self::Hosts(names) = self {
            config.links_from.0.extend_from_slice(names);
        }
        config
    }
}

/// Parses the value of `--allow`; the error says what is allowed.
pub fn allow(text: &str) -> Result<Allow, String> {
    if let Some(names) = text.strip_prefix("host:") {
        let named = |name: &str| (name == "HAMLYN_LINKS_FROM").then(|| names.into());
        let names = Config::from_lookup(named).map_err(|e| e.to_string())?.links_from.0;
        return match names.is_empty() {
            true => Err("no host is named".to_owned()),
            false => Ok(Allow::Hosts(names)),
        };
    }
    match text {
        "user" => Ok(Allow::User),
        "anyone" => Ok(Allow::Anyone),
        _ => text
            .strip_prefix("group:")
            .and_then(|group| group.parse().ok().or_else(|| gid_of(group)))
            .map(Allow::Group)
            .ok_or_else(|| {
                "allowed are \"user\", \"anyone\", \"group:GID\" or \"group:NAME\" of a group in \
                 /etc/group, and \"host:NAME\""
                    .to_owned()
            }),
    }
}

/// The number of a group in this machine's group file.
fn gid_of(group: &str) -> Option<u32> {
    let file = std::fs::read_to_string("/etc/group").ok()?;
    let mut lines = file.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_come_is_a_user_a_group_or_a_host_by_name() {
        assert_eq!(allow("group:root"), Ok(Allow::Group(0)));
        assert_eq!(allow("group:7"), Ok(Allow::Group(7)));
        let names = ["a.example", "b.example"].map(String::from).to_vec();
        assert_eq!(allow("host:a.example, b.example"), Ok(Allow::Hosts(names)));
        for (text, why) in [
            ("host:", "no host is named"),
            ("host:a,,b", "names of certificates"),
            ("group:x-none", "group:GID"),
        ] {
            let error = allow(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
