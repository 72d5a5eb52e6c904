// SPDX-License-Identifier: Apache-2.0

// Package event describes the events that the plugin and the controller write.
package event

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Kind is a kind of event.
type Kind struct {
	Reason  string
	Type    string // corev1.EventTypeWarning or EventTypeNormal
	About   string // the kind of object
	Meaning string // for docs/reference/events-and-metrics.md
}

// Warning describes a kind of event of type Warning.
func Warning(reason, about, meaning string) Kind {
	return Kind{reason, corev1.EventTypeWarning, about, meaning}
}

// Normal describes a kind of event of type Normal.
func Normal(reason, about, meaning string) Kind {
	return Kind{reason, corev1.EventTypeNormal, about, meaning}
}

// maxText is the length limit of an event's note, in bytes (events.k8s.io/v1).
const maxText = 1024

// minCause is how much of a cause an event keeps at least, in bytes.
const minCause = 256

// Join returns a text that an event may have, of a cause and what to do about it. The end of a long cause is left out,
// so that what to do is there. advice may be empty.
func Join(cause, advice string) string {
	if advice == "" {
		return Text(cause)
	}
	const separator = "; "
	if most := max(minCause, maxText-len(separator)-len(advice)); len(cause) > most {
		cause = strings.ToValidUTF8(cause[:most-len("…")], "") + "…"
	}
	return Text(cause + separator + advice)
}

// Text truncates a text to the longest one that an event may have.
func Text(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len("…")], "") + "…"
}
