//! Users of the machine: who we are, and as whom a server runs that refuses root.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result};

/// Tried in this order when we are root and a server may not be.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// One line of `/etc/passwd`, as far as we need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> Result<bool> {
    Ok(fs::metadata("/proc/self")
        .context("cannot read /proc/self")?
        .uid()
        == 0)
}

/// The account for servers that refuse root: none is needed when we are not root.
pub(crate) fn for_servers() -> Result<Option<Account>> {
    if !is_root()? {
        return Ok(None);
    }
    let found = UNPRIVILEGED.iter().find_map(|name| find(name).ok());
    Ok(Some(found.context(
        "running as root, and the machine has no user postgres or nobody",
    )?))
}

/// The number of a user's first group.
pub(crate) fn primary_group(user: &str) -> Result<u32> {
    Ok(find(user)?.gid)
}

fn find(user: &str) -> Result<Account> {
    let table = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    table
        .lines()
        .filter_map(parse)
        .find(|account| account.name == user)
        .with_context(|| format!("no user {user}"))
}

fn parse(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(Account { name, uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_user_table_is_understood() {
        let account = parse("nobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin");
        let expected = Account {
            name: "nobody".to_owned(),
            uid: 65534,
            gid: 65533,
        };
        assert_eq!(account, Some(expected));
    }

    #[test]
    fn root_has_group_zero() {
        assert_eq!(primary_group("root").unwrap(), 0);
    }
}
