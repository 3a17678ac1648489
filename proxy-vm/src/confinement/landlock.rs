//! Landlock: rules of the kernel about files and ports, which a process gives itself.
//!
//! What was opened before stays open: the log and the standard streams are not touched. A datagram to journald's socket is
//! none of the acts that are ruled here.
//!
//! **Invariant:** rights that this module does not name, of kernels to come, stay as they are: what is not tried is not
//! switched on.

use std::path::PathBuf;

use ::landlock::{
    ABI, Access, AccessFs, AccessNet, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, path_beneath_rules,
};
use protocol::Landlock;

use super::{ConfinementError, Reach};

/// Whose rights over files are taken.
const FILES: ABI = ABI::V5;
/// Whose rights over ports are taken.
const NETWORK: ABI = ABI::V4;
/// Whose scopes are drawn.
const SCOPES: ABI = ABI::V6;
/// Where the operating system keeps what it looks up names by.
const NAMES: &str = "/etc";
const RESOLVER: &str = "/etc/resolv.conf";
const DNS: u16 = 53;

/// Takes from this thread, and from those that it starts, what `reach` does not need.
pub(super) fn restrict(reach: Reach) -> Result<Landlock, ConfinementError> {
    let status = rules(reach).and_then(|rules| rules.restrict_self()).map_err(ConfinementError::Landlock)?;
    Ok(match status.ruleset {
        RulesetStatus::NotEnforced => Landlock::None,
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => level(ABI::from(status.landlock)),
    })
}

fn rules(reach: Reach) -> Result<::landlock::RulesetCreated, RulesetError> {
    let connect = |port| NetPort::new(port, AccessNet::ConnectTcp);
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(FILES))?
        .handle_access(AccessNet::from_all(NETWORK))?
        .scope(Scope::from_all(SCOPES))?
        .create()?;
    match reach {
        Reach::Nothing => Ok(rules),
        Reach::Address(address) => rules.add_rule(connect(address.port())),
        Reach::Name { port } => rules
            .add_rule(connect(port))?
            .add_rule(connect(DNS))?
            .add_rules(path_beneath_rules(name_files(), AccessFs::ReadFile)),
    }
}

/// Where files lie that a look-up reads. The resolver's is often a link to where another program writes it anew.
fn name_files() -> Vec<PathBuf> {
    let behind_link = std::fs::canonicalize(RESOLVER).ok().and_then(|path| path.parent().map(PathBuf::from));
    std::iter::once(PathBuf::from(NAMES)).chain(behind_link).collect()
}

/// What a kernel with this Landlock enforces of the rules.
fn level(abi: ABI) -> Landlock {
    if abi >= SCOPES {
        Landlock::FilesNetworkAndSignals
    } else if abi >= NETWORK {
        Landlock::FilesAndNetwork
    } else if abi >= ABI::V1 {
        Landlock::Files
    } else {
        Landlock::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_what_the_kernels_landlock_has() {
        let levels: Vec<_> = (0..=9).map(|abi| level(ABI::from(abi))).collect();
        assert_eq!(levels[0], Landlock::None);
        assert_eq!(levels[1..4], [Landlock::Files; 3]);
        assert_eq!(levels[4..6], [Landlock::FilesAndNetwork; 2]);
        assert_eq!(levels[6..], [Landlock::FilesNetworkAndSignals; 4]);
    }
}
