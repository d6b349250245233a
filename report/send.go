package report

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"hairpin/cluster"
)

// Send has the parameters of the requests that `hairpin explain --send` makes to an agent.
type Send struct {
	Protocol cluster.Protocol
	Family   cluster.Family
	Pod      cluster.Owner // none: the host
	Netns    string        // of the pod
	To       netip.AddrPort
	Port     uint16 // to watch, or of the connections to list
	Id       int    // of a watch
	Timeout  time.Duration
}

// Query returns the parameters as the query of a URL.
func (r *Send) Query() string {
	v := url.Values{"proto": {r.Protocol.String()}, "family": {r.Family.String()}, "port": {strconv.Itoa(int(r.Port))},
		"id": {strconv.Itoa(r.Id)}, "timeout": {r.Timeout.String()}}
	if r.Pod != (cluster.Owner{}) {
		v.Set("pod", r.Pod.Namespace+"/"+r.Pod.Name)
	}
	if r.To.IsValid() {
		v.Set("to", r.To.String())
	}
	return "?" + v.Encode()
}

// ParseSend parses the output of Query.
func ParseSend(v url.Values) (*Send, error) {
	r := &Send{Family: cluster.IPv4}
	var err error
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		if v.Get("proto") == p.String() {
			r.Protocol = p
		}
	}
	if v.Get("family") == cluster.IPv6.String() {
		r.Family = cluster.IPv6
	}
	if namespace, name, ok := strings.Cut(v.Get("pod"), "/"); ok {
		r.Pod = cluster.Owner{Kind: "Pod", Namespace: namespace, Name: name}
	}
	var port uint64
	if word := v.Get("port"); word != "" {
		port, err = strconv.ParseUint(word, 10, 16)
		r.Port = uint16(port)
	}
	if word := v.Get("id"); err == nil && word != "" {
		r.Id, err = strconv.Atoi(word)
	}
	if word := v.Get("to"); err == nil && word != "" {
		r.To, err = netip.ParseAddrPort(word)
	}
	if word := v.Get("timeout"); err == nil && word != "" {
		r.Timeout, err = time.ParseDuration(word)
	}
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	return r, nil
}
