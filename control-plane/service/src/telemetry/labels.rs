//! How labels of metrics are written down.

/// Labels from a closed list, each with its word.
macro_rules! labels {
    ($($(#[$doc:meta])* $visibility:vis enum $name:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            $visibility enum $name {
                $($(#[$variant_doc])* $variant,)*
            }

            impl prometheus_client::encoding::EncodeLabelValue for $name {
                fn encode(&self, encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
                    let word = match self {
                        $(Self::$variant => $word,)*
                    };
                    prometheus_client::encoding::EncodeLabelValue::encode(&word, encoder)
                }
            }
        )*
    };
}
