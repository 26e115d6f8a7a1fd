//! The events as Claude Code writes them: only the fields that are used, each of them lenient.
//!
//! A field of an unexpected type counts as absent and spoils nothing else; everything else in a
//! line is skipped without being built, and lists are taken up to a bound, so that a line of 8 MiB
//! costs little more than itself.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// At most this many items of one list are looked at.
const ITEMS_MAX: usize = 256;

/// One line of standard output.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
pub(super) struct Event<'a> {
    #[serde(rename = "type", borrow, deserialize_with = "lenient")]
    pub(super) kind: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) subtype: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) session_id: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) parent_tool_use_id: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) timestamp: Option<Text<'a>>,
    /// `assistant` and `user`; a plain text in `system` events.
    #[serde(borrow)]
    pub(super) message: Option<&'a RawValue>,
    // system/init
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) model: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) claude_code_version: Option<Text<'a>>,
    // system/api_retry
    #[serde(deserialize_with = "lenient")]
    pub(super) attempt: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) max_retries: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) retry_delay_ms: Option<f64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) error_status: Option<u16>,
    /// Also of a made-up `assistant` message that stands for an error of the API.
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) error: Option<Text<'a>>,
    // system/permission_denied
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) tool_name: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) tool_use_id: Option<Text<'a>>,
    // rate_limit_event
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) rate_limit_info: Option<RateLimit<'a>>,
    // result
    #[serde(deserialize_with = "lenient")]
    pub(super) is_error: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    pub(super) api_error_status: Option<u16>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) terminal_reason: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) result: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) errors: Option<Items<Text<'a>>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) permission_denials: Option<Items<Denial<'a>>>,
    #[serde(deserialize_with = "lenient")]
    pub(super) total_cost_usd: Option<f64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) usage: Option<Tokens>,
    #[serde(rename = "modelUsage", borrow, deserialize_with = "lenient")]
    pub(super) model_usage: Option<Items<ModelUsage<'a>>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) model_usage_since_last_result: Option<Items<ModelUsage<'a>>>,
}

/// `assistant.message` and `user.message`.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
pub(super) struct Message<'a> {
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) content: Option<Content<'a>>,
}

/// One block of a message.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
pub(super) struct Block<'a> {
    #[serde(rename = "type", borrow, deserialize_with = "lenient")]
    pub(super) kind: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) text: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) input: Option<ToolInput<'a>>,
    #[serde(deserialize_with = "lenient")]
    pub(super) is_error: Option<bool>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) tool_use_id: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) content: Option<Content<'a>>,
}

/// What a person wants to see of a tool's input: the first of these that there is.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
pub(super) struct ToolInput<'a> {
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) command: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) file_path: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) notebook_path: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) pattern: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) path: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) url: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) query: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) skill: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) description: Option<Text<'a>>,
}

/// `rate_limit_event.rate_limit_info`.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
pub(super) struct RateLimit<'a> {
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) status: Option<Text<'a>>,
    #[serde(rename = "resetsAt", deserialize_with = "lenient")]
    pub(super) resets_at: Option<f64>,
    #[serde(rename = "rateLimitType", borrow, deserialize_with = "lenient")]
    pub(super) limit: Option<Text<'a>>,
}

/// One of `result.permission_denials`.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
pub(super) struct Denial<'a> {
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) tool_name: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "lenient")]
    pub(super) tool_use_id: Option<Text<'a>>,
}

/// `result.usage`: disjoint.
#[derive(serde::Deserialize, Default, Clone, Copy)]
#[serde(default)]
pub(super) struct Tokens {
    #[serde(deserialize_with = "lenient")]
    pub(super) input_tokens: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) cache_read_input_tokens: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) cache_creation_input_tokens: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) output_tokens: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) output_tokens_details: Option<OutputDetails>,
}

/// `result.usage.output_tokens_details`.
#[derive(serde::Deserialize, Default, Clone, Copy)]
#[serde(default)]
pub(super) struct OutputDetails {
    #[serde(deserialize_with = "lenient")]
    pub(super) thinking_tokens: Option<u64>,
}

/// The share of one model.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
pub(super) struct ModelUsage<'a> {
    #[serde(rename = "inputTokens", deserialize_with = "lenient")]
    pub(super) input_tokens: Option<u64>,
    #[serde(rename = "outputTokens", deserialize_with = "lenient")]
    pub(super) output_tokens: Option<u64>,
    #[serde(rename = "cacheReadInputTokens", deserialize_with = "lenient")]
    pub(super) cache_read_tokens: Option<u64>,
    #[serde(rename = "cacheCreationInputTokens", deserialize_with = "lenient")]
    pub(super) cache_write_tokens: Option<u64>,
    #[serde(rename = "thinkingTokens", deserialize_with = "lenient")]
    pub(super) thinking_tokens: Option<u64>,
    #[serde(rename = "costUSD", deserialize_with = "lenient")]
    pub(super) cost_usd: Option<f64>,
    #[serde(rename = "costBasis", borrow, deserialize_with = "lenient")]
    pub(super) cost_basis: Option<Text<'a>>,
}

/// A string, borrowed where it has no escapes.
#[derive(serde::Deserialize, Default)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A text, or a list of blocks.
pub(super) enum Content<'a> {
    Text(Cow<'a, str>),
    Blocks(Vec<Block<'a>>),
}

/// The first [`ITEMS_MAX`] items of a list, or values of an object.
pub(super) struct Items<T>(pub(super) Vec<T>);

/// Reads a value, and takes one of an unexpected type for absent.
fn lenient<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let raw: &'de RawValue = Deserialize::deserialize(deserializer)?;
    Ok(serde_json::from_str(raw.get()).ok())
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for ContentVisitor<'a> {
            type Value = Content<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of blocks")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Ok(Content::Blocks(first_items(seq)?))
            }
        }
        deserializer.deserialize_any(ContentVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemsVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ItemsVisitor<T> {
            type Value = Items<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list or an object")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Ok(Items(first_items(seq)?))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while items.len() < ITEMS_MAX {
                    match map.next_entry::<IgnoredAny, T>()? {
                        Some((_, item)) => items.push(item),
                        None => return Ok(Items(items)),
                    }
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Items(items))
            }
        }
        deserializer.deserialize_any(ItemsVisitor(PhantomData))
    }
}

fn first_items<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(
    mut seq: A,
) -> Result<Vec<T>, A::Error> {
    let mut items = Vec::new();
    while items.len() < ITEMS_MAX {
        match seq.next_element()? {
            Some(item) => items.push(item),
            None => return Ok(items),
        }
    }
    while seq.next_element::<IgnoredAny>()?.is_some() {}
    Ok(items)
}
