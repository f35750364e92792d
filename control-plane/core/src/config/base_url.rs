//! The shape of a provider's base URL, and whether it names this machine or a private network (decision 7).
//!
//! The check is strict on purpose: the URL is put together with paths and sent credentials, so user
//! information, queries, fragments, dot segments and hosts that resolvers read in surprising ways
//! (`0x7f.1`) are refused instead of interpreted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Violations;

/// Longest base URL in bytes.
pub const MAX_BASE_URL_BYTES: usize = 2_048;

/// A base URL taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts<'a> {
    /// Without brackets or port.
    host: Host<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

/// Checks that the text is `http://` or `https://`, a host, an optional port and an optional path.
///
/// # Errors
/// What is wrong and what is expected, for people.
pub fn check(url: &str) -> Result<(), &'static str> {
    parse(url).map(|_| ())
}

/// Adds a violation unless the URL may be sent a credential: [`check`], and `https://` unless it is a loopback address.
pub(super) fn check_endpoint(field: String, url: &str, found: &mut Violations) {
    if let Err(message) = check(url) {
        found.push(field, message);
    } else if !url.starts_with("https://") && !is_loopback(url) {
        let message = "must begin with https://, unless it is a loopback address";
        found.push(field, message);
    }
}

/// Whether the URL's host is loopback, private, link-local or unspecified, or named `localhost`. False for
/// what is no valid base URL.
#[must_use]
pub fn is_local(url: &str) -> bool {
    match parse(url) {
        Ok(Parts {
            host: Host::Address(address),
        }) => is_local_address(address),
        Ok(Parts {
            host: Host::Name(name),
        }) => is_localhost(name),
        Err(_) => false,
    }
}

/// Whether the URL's host is a loopback address or named `localhost`. False for what is no valid base URL.
#[must_use]
pub fn is_loopback(url: &str) -> bool {
    match parse(url) {
        Ok(Parts {
            host: Host::Address(address),
        }) => address.to_canonical().is_loopback(),
        Ok(Parts {
            host: Host::Name(name),
        }) => is_localhost(name),
        Err(_) => false,
    }
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// The URL without the slashes at its end, so that a path can be appended.
#[must_use]
pub fn without_trailing_slash(url: &str) -> &str {
    url.trim_end_matches('/')
}

fn parse(url: &str) -> Result<Parts<'_>, &'static str> {
    if url.len() > MAX_BASE_URL_BYTES {
        return Err("must not be longer than 2048 bytes");
    }
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"))
        .ok_or("must begin with http:// or https://")?;
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, path),
        None => (rest, ""),
    };
    check_path(path)?;
    if authority.contains('@') {
        return Err("must not contain user information; credentials belong to connections");
    }
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (address, port) = bracketed
                .split_once(']')
                .ok_or("has an unclosed bracket in its host")?;
            if !port.is_empty() {
                check_port(port.strip_prefix(':').ok_or("has text after its host")?)?;
            }
            let address: Ipv6Addr = address
                .parse()
                .map_err(|_| "has no valid IPv6 address in brackets")?;
            Host::Address(IpAddr::V6(address))
        }
        None => {
            let name = match authority.split_once(':') {
                Some((name, port)) => {
                    check_port(port)?;
                    name
                }
                None => authority,
            };
            named_host(name)?
        }
    };
    Ok(Parts { host })
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.contains(['?', '#']) {
        return Err("must not have a query or fragment");
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&byte);
    if !path.bytes().all(allowed) {
        return Err("has a character that a path may not hold unescaped");
    }
    if path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err("must not have . or .. in its path");
    }
    Ok(())
}

fn check_port(port: &str) -> Result<(), &'static str> {
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(number) if digits && number > 0 => Ok(()),
        _ => Err("has no valid port; expected 1 to 65535"),
    }
}

fn named_host(name: &str) -> Result<Host<'_>, &'static str> {
    if name.is_empty() {
        return Err("has no host");
    }
    if let Ok(address) = name.parse::<Ipv4Addr>() {
        return Ok(Host::Address(IpAddr::V4(address)));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.len() > 253 || !name.bytes().all(allowed) {
        return Err("has no valid host name");
    }
    // A name whose last label is a number is an address to some resolvers and a name to others.
    let last = name
        .trim_end_matches('.')
        .rsplit('.')
        .next()
        .unwrap_or_default();
    let hexadecimal = last.starts_with("0x") || last.starts_with("0X");
    if last.is_empty() || hexadecimal || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("has no valid host name");
    }
    Ok(Host::Name(name))
}

fn is_local_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_local_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_local_v4(mapped),
            None => {
                address.is_loopback()
                    || address.is_unspecified()
                    || address.is_unique_local()
                    || address.is_unicast_link_local()
            }
        },
    }
}

fn is_local_v4(address: Ipv4Addr) -> bool {
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_unspecified()
}
