package datapath

import (
	"fmt"
	"strings"

	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
)

// The headings of a State's text form. What stands under one is in the words of the tool that it names.
const (
	headNB     = "### OVN: ovn-nbctl, ovn-sbctl"
	headBridge = "### Open vSwitch: ovs-vsctl, ovs-ofctl"
	headNFT    = "### nft"
	headHost   = "### kernel: ip, sysctl"
	headConn   = "### connections" // only where there are some
)

// Print writes a State as text, the same for equal States.
func Print(s State) string {
	var b strings.Builder
	for _, part := range []struct{ head, text string }{
		{headNB, nb.Print(s.NB)}, {headBridge, flow.Print(s.Bridge)}, {headNFT, nft.Print(s.NFT)}, {headHost, host.Print(s.Host)},
	} {
		b.WriteString(part.head + "\n")
		b.WriteString(part.text)
		if part.text != "" && !strings.HasSuffix(part.text, "\n") {
			b.WriteByte('\n')
		}
	}
	if text := conn.Print(s.Conn); text != "" {
		b.WriteString(headConn + "\n" + text)
	}
	return b.String()
}

// Parse reads what Print wrote. The error names the part and what it did not know.
func Parse(text string) (s State, err error) {
	parts := map[string]*strings.Builder{}
	var at *strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "### ") {
			at = &strings.Builder{}
			parts[strings.TrimRight(line, "\n")] = at
			continue
		}
		if at == nil {
			return s, fmt.Errorf("line %q stands before the first heading", strings.TrimSpace(line))
		}
		at.WriteString(line)
	}
	for head, b := range parts {
		switch head {
		case headNB:
			s.NB, err = nb.Parse(b.String())
		case headBridge:
			s.Bridge, err = flow.Parse(b.String())
		case headNFT:
			s.NFT, err = nft.Parse(b.String())
		case headHost:
			s.Host, err = host.Parse(b.String())
		case headConn:
			s.Conn, err = conn.Parse(b.String())
		default:
			err = fmt.Errorf("this heading is not known")
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", head, err)
		}
	}
	return s, nil
}
