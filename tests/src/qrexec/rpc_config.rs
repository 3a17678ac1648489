//! The configuration of one service in its VM, as in `/etc/qubes/rpc-config/NAME`.
//!
//! Follows the agent's reader: `key=value` lines, spaces and tabs around the `=`, text in single quotes without
//! escapes, booleans `true` and `false`, lines that begin with `#`, comments behind a value.
//!
//! **Invariant:** what the agent would not read is an error here, and fails every call of the service.

use std::collections::BTreeSet;

/// How a service is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcConfig {
    /// The user that runs it, whatever the policy says.
    pub force_user: Option<String>,
    /// Whether it waits for the VM's graphical session.
    pub wait_for_session: bool,
    /// Whether a socket service is not told which service and caller it is about. Programs are told anyway.
    pub skip_service_descriptor: bool,
    /// Whether a socket service's call ends when the service ends its output.
    pub exit_on_service_eof: bool,
    /// Whether a socket service's call ends when the caller ends its input; a late answer is lost.
    pub exit_on_client_eof: bool,
}

/// A service's configuration cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct RpcConfigError {
    /// The line, from 1; the last one for what is wrong with the whole.
    pub line: usize,
    /// What is wrong with it.
    pub fault: RpcConfigFault,
}

/// What is wrong with a service's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcConfigFault {
    /// Not `key=value`, a comment or nothing.
    #[error("not key=value")]
    Form,
    /// The value is neither `true`, `false`, a decimal number nor a text in single quotes.
    #[error("not a value")]
    Value,
    /// The value is of another type than the key's.
    #[error("not a value of this key's type")]
    Type,
    /// The key was there before.
    #[error("the key is there twice")]
    Twice,
    /// `force-user` and something that makes no sense with it.
    #[error("force-user cannot be with skip-service-descriptor, exit-on-service-eof or exit-on-client-eof")]
    ForceUser,
}

enum Value<'t> {
    Bool(bool),
    Number(u64),
    Text(&'t str),
}

impl RpcConfig {
    /// Reads a configuration. Unknown keys are passed over, as the agent does.
    ///
    /// # Errors
    ///
    /// [`RpcConfigError`] of the first line that is not as it must be.
    pub fn parse(text: &str) -> Result<Self, RpcConfigError> {
        let mut config = Self::default();
        let mut seen = BTreeSet::new();
        let mut last = 1;
        for (line, number) in text.lines().zip(1..) {
            last = number;
            config.take(line, &mut seen).map_err(|fault| RpcConfigError { line: number, fault })?;
        }
        let of_sockets = config.skip_service_descriptor || config.exit_on_service_eof || config.exit_on_client_eof;
        if config.force_user.is_some() && of_sockets {
            return Err(RpcConfigError { line: last, fault: RpcConfigFault::ForceUser });
        }
        Ok(config)
    }

    fn take<'t>(&mut self, line: &'t str, seen: &mut BTreeSet<&'t str>) -> Result<(), RpcConfigFault> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let (key, value) = line.split_once('=').ok_or(RpcConfigFault::Form)?;
        let key = key.trim_end_matches(BLANK);
        let key_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !key.starts_with(|first: char| first.is_ascii_alphabetic()) || !key.bytes().all(key_byte) {
            return Err(RpcConfigFault::Form);
        }
        let value = parse_value(value.trim_start_matches(BLANK))?;
        let field = match key {
            "force-user" => {
                let Value::Text(user) = value else { return Err(RpcConfigFault::Type) };
                return if seen.insert(key) {
                    self.force_user = Some(user.to_owned());
                    Ok(())
                } else {
                    Err(RpcConfigFault::Twice)
                };
            }
            "wait-for-session" => &mut self.wait_for_session,
            "skip-service-descriptor" => &mut self.skip_service_descriptor,
            "exit-on-service-eof" => &mut self.exit_on_service_eof,
            "exit-on-client-eof" => &mut self.exit_on_client_eof,
            _ => return Ok(()),
        };
        if !seen.insert(key) {
            return Err(RpcConfigFault::Twice);
        }
        *field = match value {
            Value::Bool(value) => value,
            // Only this key had numbers once.
            Value::Number(number @ (0 | 1)) if key == "wait-for-session" => number == 1,
            Value::Number(_) | Value::Text(_) => return Err(RpcConfigFault::Type),
        };
        Ok(())
    }
}

const BLANK: [char; 2] = [' ', '\t'];

fn parse_value(text: &str) -> Result<Value<'_>, RpcConfigFault> {
    let (value, rest) = if let Some(text) = text.strip_prefix('\'') {
        let (text, rest) = text.split_once('\'').ok_or(RpcConfigFault::Value)?;
        (Value::Text(text), rest)
    } else if let Some(rest) = text.strip_prefix("true") {
        (Value::Bool(true), rest)
    } else if let Some(rest) = text.strip_prefix("false") {
        (Value::Bool(false), rest)
    } else {
        let end = text.find(|byte: char| !byte.is_ascii_digit()).unwrap_or(text.len());
        let (digits, rest) = text.split_at_checked(end).ok_or(RpcConfigFault::Value)?;
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(RpcConfigFault::Value);
        }
        (Value::Number(digits.parse().map_err(|_| RpcConfigFault::Value)?), rest)
    };
    let rest = rest.trim_start_matches(BLANK);
    if rest.is_empty() || rest.starts_with('#') { Ok(value) } else { Err(RpcConfigFault::Value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_files_are_read() {
        let text = "# a comment\n\nforce-user='root'\nwait-for-session \t=  true # why\r\nsome-key = 17\n";
        let expected =
            RpcConfig { force_user: Some("root".to_owned()), wait_for_session: true, ..RpcConfig::default() };
        assert_eq!(RpcConfig::parse(text), Ok(expected));
        let text = "skip-service-descriptor=true\nexit-on-service-eof=true\nexit-on-client-eof=true\nforce-x=''";
        let expected = RpcConfig {
            skip_service_descriptor: true,
            exit_on_service_eof: true,
            exit_on_client_eof: true,
            ..RpcConfig::default()
        };
        assert_eq!(RpcConfig::parse(text), Ok(expected));
        for (text, waits) in [("wait-for-session=1", true), ("wait-for-session=0", false), ("", false)] {
            assert_eq!(RpcConfig::parse(text).map(|config| config.wait_for_session), Ok(waits), "{text}");
        }
    }

    #[test]
    fn one_bad_value_fails_all() {
        use RpcConfigFault::{ForceUser, Form, Twice, Type, Value};
        for (text, fault) in [
            ("wait-for-session", Form),
            (" wait-for-session=true", Form),
            ("[section]", Form),
            ("1key=true", Form),
            ("a b=true", Form),
            ("wait-for-session=yes", Value),
            ("wait-for-session=", Value),
            ("wait-for-session=True", Value),
            ("wait-for-session=truely", Value),
            ("wait-for-session=2", Type),
            ("wait-for-session=01", Value),
            ("wait-for-session='true'", Type),
            ("force-user=\"root\"", Value),
            ("force-user='root", Value),
            ("force-user='a' 'b'", Value),
            ("force-user='''a'''", Value),
            ("force-user=root", Value),
            ("force-user=true", Type),
            ("exit-on-client-eof=1", Type),
            ("unknown=maybe", Value),
            ("wait-for-session=true\nwait-for-session=true", Twice),
            ("force-user='a'\nforce-user='a'", Twice),
            ("force-user='a'\nskip-service-descriptor=true", ForceUser),
            ("exit-on-client-eof=true\nforce-user='a'", ForceUser),
        ] {
            let line = text.lines().count().max(1);
            assert_eq!(RpcConfig::parse(text), Err(RpcConfigError { line, fault }), "{text}");
        }
    }
}
