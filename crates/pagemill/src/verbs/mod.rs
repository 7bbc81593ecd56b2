//! One file a verb. A verb parses nothing and prints its own result; what it computes lives below.
