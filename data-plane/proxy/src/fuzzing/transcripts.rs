//! Streams as upstreams send them, one of each dialect and kind.

use crate::sse::Dialect;

/// A chat that reasons, speaks and stops.
const CHAT_TEXT: &str = r#": upstream is processing

data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"c-1","choices":[{"index":0,"delta":{"reasoning_content":"A greeting is due."},"finish_reason":null}]}

data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"Grüß "},"finish_reason":null}]}

data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"\u4f60\u597d \ud83d\ude00\n"},"finish_reason":null}]}

data: {"id":"c-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"id":"c-1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}

data: [DONE]

"#;

/// A chat that calls two tools.
const CHAT_TOOLS: &str = r#"data: {"id":"c-2","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}

data: {"id":"c-2","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t-1","type":"function","function":{"name":"tide","arguments":""}}]}}]}

data: {"id":"c-2","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"port\":\"Husum\"}"}}]}}]}

data: {"id":"c-2","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"t-2","type":"function","function":{"name":"wind","arguments":"{}"}}]}}]}

data: {"id":"c-2","choices":[{"index":0,"delta":{"content":"","tool_calls":[]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":30,"completion_tokens":17}}

data: [DONE]

"#;

/// Legacy completions with two choices, broken off.
const CHAT_LEGACY: &str = r#"data: {"object":"text_completion","choices":[{"index":0,"text":"High "},{"index":1,"text":"Low "}]}

data:{"object":"text_completion",
data: "choices":[{"index":1,"text":"water","finish_reason":"length"}]}

data: {"error":{"message":"the server had an error","type":"server_error"}}

"#;

/// Responses with reasoning, a function call and text.
const RESPONSES: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"r-1","status":"in_progress"}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"id":"rs-1","type":"reasoning","summary":[]}}

event: response.reasoning_summary_text.delta
data: {"type":"response.reasoning_summary_text.delta","sequence_number":2,"item_id":"rs-1","delta":"Ask the table."}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":3,"output_index":0,"item":{"id":"rs-1","type":"reasoning"}}

data: {"type":"response.output_item.added","sequence_number":4,"output_index":1,"item":{"id":"fc-1","type":"function_call","name":"tide","arguments":""}}

data: {"type":"response.function_call_arguments.delta","sequence_number":5,"item_id":"fc-1","delta":"{\"port\":"}

data: {"type":"response.function_call_arguments.done","sequence_number":6,"item_id":"fc-1","arguments":"{\"port\":\"Husum\"}"}

data: {"type":"response.output_item.added","sequence_number":7,"output_index":2,"item":{"id":"m-1","type":"message","content":[]}}

data: {"type":"response.output_text.delta","sequence_number":8,"delta":"Flut um drei; \u00fcbermorgen"}

data: {"type":"response.refusal.delta","sequence_number":9,"delta":"no"}

data: {"type":"response.completed","sequence_number":10,"response":{"id":"r-1","status":"completed","usage":{"input_tokens":40,"output_tokens":20}}}

"#;

/// Messages with thinking, text, a tool of the client's and one of the upstream's.
const MESSAGES: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg-1","role":"assistant","content":[],"usage":{"input_tokens":25,"cache_read_input_tokens":5,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}

event: ping
data: {"type":"ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Tides."}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Ebbe, 你好"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"server_tool_use","id":"s-1","name":"web_search","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"query\":\"tide\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"web_search_tool_result","tool_use_id":"s-1","content":[]}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":33}}

event: message_stop
data: {"type":"message_stop"}

"#;

/// All of them.
pub(crate) const ALL: [(Dialect, &str); 5] = [
    (Dialect::Chat, CHAT_TEXT),
    (Dialect::Chat, CHAT_TOOLS),
    (Dialect::Chat, CHAT_LEGACY),
    (Dialect::Responses, RESPONSES),
    (Dialect::Messages, MESSAGES),
];
