package walk

import (
	"fmt"
	"strings"

	"hairpin/walk/packet"
)

// String returns the walk in the form of the documents. Each step has its place, rule, effect and
// object, the packet if it changed, and the new conntrack entry. The reply's path and the verdict
// follow. Equal Traces give equal text.
func (t Trace) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "from %s: %s\n", t.From, t.Sent)
	packet.WriteSteps(&b, t.Sent, t.Forward)
	b.WriteString(t.Verdict.forward())
	if len(t.Reply) > 0 {
		b.WriteString("reply\n")
		packet.WriteSteps(&b, packet.Packet{}, t.Reply)
	}
	if t.Verdict.AnswerReason != "" {
		fmt.Fprintf(&b, "=> %s\n", t.Verdict.AnswerReason)
	}
	return b.String()
}

// forward returns the verdict about the forward path.
func (v Verdict) forward() string {
	switch {
	case v.Delivered:
		return fmt.Sprintf("=> %s; %s sees %s\n", v.Reason, v.At, v.Seen)
	case v.Reason == "":
		return ""
	case v.Rejected, v.Flooded:
		return fmt.Sprintf("=> %s\n", v.Reason)
	}
	return fmt.Sprintf("=> not delivered: %s\n", v.Reason)
}
