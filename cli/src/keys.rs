//! `hamlyn keys`: credentials with which hosts prove their identity, either a secret, or an
//! authority and certificates.
//!
//! Never: another user can read a key, not even for a moment; an existing file is overwritten
//! without `--force`; an authority signs that another user can have put there.

use crate::arguments::KeysArguments;
use anyhow::{Context, Result, bail, ensure};
use hamlyn::control::hosts::key_files::{self, Readers};
use hamlyn_tools::output;
use hamlyn_tools::secret::{is_there, make_secret, write};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs::DirBuilder;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;

const DAY: Duration = Duration::from_secs(86_400);
/// Clocks of two hosts may differ by this much.
const SLACK: Duration = Duration::from_secs(3600);

/// `hamlyn keys`.
pub fn run(arguments: &KeysArguments) -> Result<()> {
    let default = if arguments.certificate.is_empty() { "hamlyn.secret" } else { "hamlyn-keys" };
    let path = arguments.path.clone().unwrap_or_else(|| default.into());
    let path = std::path::absolute(&path).with_context(|| format!("{}", path.display()))?;
    match arguments.certificate.is_empty() {
        true => secret(&path, arguments.force),
        false => certificates(&path, arguments),
    }
}

fn secret(path: &Path, force: bool) -> Result<()> {
    make_secret(path, force)?;
    output::line(format_args!("export HAMLYN_SECRET={}", quoted(path)))?;
    output::line(
        "# On every host the same file, copied where nobody reads along (scp), for its owner alone \
         (chmod 600).",
    )?;
    output::line("# Who is to be connected to sets HAMLYN_LISTEN=ADDRESS:PORT, too.")
}

fn certificates(directory: &Path, arguments: &KeysArguments) -> Result<()> {
    let names: Vec<Vec<&str>> =
        arguments.certificate.iter().map(|names| names.split(',').collect()).collect();
    // All files are checked before any is made.
    let mut files = Vec::new();
    for names in &names {
        let first = file_name(names[0])?;
        ensure!(
            names.iter().any(|name| name.parse::<IpAddr>().is_err()),
            "{}: others know a host by the first name in its certificate, and here are addresses alone: \
             say --certificate NAME,{0}",
            names.join(",")
        );
        let pair = [format!("{first}.pem"), format!("{first}-key.pem")].map(|f| directory.join(f));
        ensure!(!files.contains(&pair), "{} is named twice", names[0]);
        if !arguments.force
            && let Some(there) = pair.iter().find(|path| path.symlink_metadata().is_ok())
        {
            bail!(is_there(there));
        }
        files.push(pair);
    }
    let cannot = || format!("cannot make keys in {}", directory.display());
    key_files::check_directory(directory).with_context(cannot)?;
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(directory).with_context(cannot)?;
    let (issuer, authority_ends) = authority(directory, arguments)?;
    for (names, [certificate, key]) in names.iter().zip(&files) {
        let mut params = params(names, arguments.days)?;
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // No host accepts it for longer than the authority is valid.
        let wanted = params.not_after;
        params.not_after = wanted.min(authority_ends);
        let end = params.not_after.date();
        let pair = KeyPair::generate()?;
        let signed = params.signed_by(&pair, &issuer)?;
        write(key, pair.serialize_pem().as_bytes(), arguments.force)?;
        write(certificate, signed.pem().as_bytes(), arguments.force)?;
        let days = arguments.days;
        // A moment passes between the two where both are made at once.
        let why = match wanted - authority_ends > time::Duration::hours(1) {
            true => format!(
                "when its authority ends, too, and not for {days} days: for longer, make an authority in \
                 another directory"
            ),
            false if days == 1 => "for 1 day".into(),
            false => format!("for {days} days"),
        };
        output::line(format_args!("# {}, until {end}, {why}:", names.join(", ")))?;
        output::line(format_args!("export HAMLYN_CERTIFICATE={}", quoted(certificate)))?;
        output::line(format_args!("export HAMLYN_CERTIFICATE_KEY={}", quoted(key)))?;
        let trusted = directory.join(AUTHORITY);
        output::line(format_args!("export HAMLYN_TRUSTED={}", quoted(&trusted)))?;
    }
    output::line(format_args!(
        "# A host needs its own certificate and key, and {AUTHORITY}. {AUTHORITY_KEY} makes more of \
         them: it stays here.",
    ))?;
    output::line(
        "# A service for this user alone is for hosts whose certificates have the same first name; \
         others need `--allow host:NAME`, or `--allow anyone`, which is whoever has a certificate.",
    )
}

const AUTHORITY: &str = "authority.pem";
const AUTHORITY_KEY: &str = "authority-key.pem";
/// The common part of an authority's name. A part of its own follows, derived from its key: two
/// authorities with one name would be confused, and the error would be a wrong signature.
const AUTHORITY_NAME: &str = "Hamlyn hosts";

fn authority_name(key: &KeyPair) -> String {
    let digest = blake3::hash(key.public_key_raw());
    format!("{AUTHORITY_NAME} {}", &digest.to_hex()[..12])
}

/// The existing authority, or a new one, and its expiry. `--force` keeps an existing one, too: a
/// new authority would invalidate all certificates that it has signed.
fn authority(
    directory: &Path,
    arguments: &KeysArguments,
) -> Result<(Issuer<'static, KeyPair>, OffsetDateTime)> {
    let (path, key_path) = (directory.join(AUTHORITY), directory.join(AUTHORITY_KEY));
    let read = |path: &Path, readers| -> Result<String> {
        let mut text = String::new();
        let read = key_files::open(path, readers).map_err(anyhow::Error::from);
        let read = read.and_then(|mut file| Ok(file.read_to_string(&mut text)?));
        read.with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text)
    };
    match (path.exists(), key_path.exists()) {
        (true, true) => {
            let key = KeyPair::from_pem(&read(&key_path, Readers::Nobody)?)
                .with_context(|| format!("{} is no key", key_path.display()))?;
            let certificate =
                CertificateDer::from_pem_slice(read(&path, Readers::Everybody)?.as_bytes())
                    .with_context(|| format!("{} is no certificate", path.display()))?;
            // Checks that this command made it: its name, and its key inside.
            let has = |part: &[u8]| certificate.windows(part.len()).any(|found| found == part);
            let name = authority_name(&key);
            let end = ends(&certificate);
            let (true, Some(end)) = (has(key.public_key_raw()) && has(name.as_bytes()), end) else {
                bail!(
                    "{} is not what `hamlyn keys` made with {}: make another authority, in another \
                     directory",
                    path.display(),
                    key_path.display()
                );
            };
            let params = authority_params(arguments.days, name)?;
            ensure!(
                end > now()?,
                "the authority {} has ended, on {}, and all that it has signed: make another, in another \
                 directory, and give each host its authority.pem",
                path.display(),
                end.date()
            );
            return Ok((Issuer::new(params, key), end));
        }
        (false, false) => {}
        (has, _) => {
            let (there, missing) = if has { (path, AUTHORITY_KEY) } else { (key_path, AUTHORITY) };
            bail!("{} is there, and {missing} beside it is not: they go together", there.display());
        }
    }
    let key = KeyPair::generate()?;
    let params = authority_params(arguments.days, authority_name(&key))?;
    let certificate = params.self_signed(&key)?;
    write(&key_path, key.serialize_pem().as_bytes(), false)?;
    write(&path, certificate.pem().as_bytes(), false)?;
    let end = params.not_after;
    Ok((Issuer::new(params, key), end))
}

fn authority_params(days: u32, name: String) -> Result<CertificateParams> {
    let mut params = params(&[], days)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A certificate of these names and addresses.
fn params(names: &[&str], days: u32) -> Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names.clone())
        .with_context(|| format!("{} is no name of a host and no address", names.join(",")))?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(first) = names.first() {
        params.distinguished_name.push(DnType::CommonName, first.as_str());
    }
    let now = now()?;
    params.not_before = now - SLACK;
    params.not_after = now + DAY * days;
    Ok(params)
}

/// In whole seconds, like certificates.
fn now() -> Result<OffsetDateTime> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock")?;
    Ok(date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_secs()))
}

/// The expiry of a certificate: the second of two adjacent times in it (RFC 5280, 4.1.2.5), each
/// with a year of two digits (0x17) or of four (0x18). In UTC to the second.
fn ends(certificate: &[u8]) -> Option<OffsetDateTime> {
    let time = |bytes: &[u8]| -> Option<(OffsetDateTime, usize)> {
        let (digits, century) = match bytes {
            [0x17, 13, rest @ ..] => (rest.get(..13)?, None),
            [0x18, 15, rest @ ..] => (rest.get(..15)?, Some(0)),
            _ => return None,
        };
        let text = std::str::from_utf8(digits).ok()?.strip_suffix('Z')?;
        let (year, rest) = text.split_at(if century.is_some() { 4 } else { 2 });
        let year: i32 = year.parse().ok()?;
        let year = year + century.unwrap_or(if year < 50 { 2000 } else { 1900 });
        let two = |at: usize| rest.get(at..at + 2)?.parse::<u8>().ok();
        let (month, day) = (two(0)?, two(2)?);
        if !(1..=12).contains(&month) || day == 0 {
            return None;
        }
        let seconds = [two(4)?, two(6)?, two(8)?].map(u64::from);
        let seconds = seconds[0] * 3600 + seconds[1] * 60 + seconds[2];
        // Adds the days after the first; the certificate is trusted for the length of a month.
        let date = date_time_ymd(year, month, 1) + DAY * u32::from(day - 1);
        Some((date + Duration::from_secs(seconds), digits.len() + 2))
    };
    (0..certificate.len()).find_map(|at| {
        let (_, bytes) = time(&certificate[at..])?;
        Some(time(&certificate[at + bytes..])?.0)
    })
}

/// The name of a certificate's files, derived from its first name.
fn file_name(name: &str) -> Result<String> {
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    ensure!(
        !name.is_empty() && name.bytes().all(allowed) && !name.starts_with(['.', '-']),
        "{name:?} is no name of a host and no address: allowed are a-z A-Z 0-9 . _ - and, in an IPv6 \
         address, :"
    );
    ensure!(name != "authority", "\"authority\" is what the authority's own files are called");
    Ok(name.replace(':', "_"))
}

/// Quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = PathBuf::from(path).display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:+,@%".contains(&byte);
    match text.bytes().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_certificate_ends_is_read_as_it_was_written() {
        for days in [1, 825, 36_500] {
            let key = KeyPair::generate().unwrap();
            let params = authority_params(days, authority_name(&key)).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            assert_eq!(ends(certificate.der()), Some(params.not_after), "{days}");
        }
        assert_eq!(ends(b"no certificate"), None);
    }
}
