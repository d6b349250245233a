package cluster

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const fieldServiceName = "metadata.labels[" + discoveryv1.LabelServiceName + "]"

// slice is one EndpointSlice.
type slice struct {
	owner     Owner
	service   Owner  // zero: none
	family    Family // 0: of host names, which are not served
	triggered time.Time
	ports     []slicePort
	named     []Backend // endpoints, without a port
	endpoints []Backend // those of named that the guard accepts
	guard     int       // the number of that guard
	problems  Problems
	refused   []Problem // by the guard
}

type slicePort struct {
	name     string
	protocol Protocol
	port     uint16
}

func (x *slice) problem(field, format string, args ...any) {
	x.problems.Add(x.owner, field, format, args...)
}

func parseSlice(o *discoveryv1.EndpointSlice) *slice {
	x := &slice{owner: ownerOf("EndpointSlice", &o.ObjectMeta)}
	if ignored(o.Labels) {
		return x
	}
	if name := o.Labels[discoveryv1.LabelServiceName]; name != "" {
		x.service = Owner{"Service", o.Namespace, name}
	} else {
		x.problem(fieldServiceName, "names no Service, so the slice serves none")
	}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4:
		x.family = IPv4
	case discoveryv1.AddressTypeIPv6:
		x.family = IPv6
	case discoveryv1.AddressTypeFQDN:
		return x
	default:
		x.problem("addressType", "%q is not an address type (IPv4, IPv6, FQDN)", o.AddressType)
		return x
	}
	if t, err := time.Parse(time.RFC3339Nano, o.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		x.triggered = t.UTC()
	}
	x.parsePorts(o)
	x.parseEndpoints(o)
	return x
}

// parsePorts omits ports without a number, which mean "all ports" and are not for Services.
func (x *slice) parsePorts(o *discoveryv1.EndpointSlice) {
	for i := range o.Ports {
		p := &o.Ports[i]
		if p.Port == nil {
			continue
		}
		protocol, err := parseProtocol(deref(p.Protocol))
		switch {
		case err != nil:
			x.problem(fmt.Sprintf("ports[%d].protocol", i), "%v", err)
		case *p.Port < 1 || *p.Port > 65535:
			x.problem(fmt.Sprintf("ports[%d].port", i), "%d is not a port number (1 to 65535)", *p.Port)
		default:
			x.ports = append(x.ports, slicePort{deref(p.Name), protocol, uint16(*p.Port)})
		}
	}
}

// parseEndpoints reports only the first invalid address: a slice has up to a thousand.
func (x *slice) parseEndpoints(o *discoveryv1.EndpointSlice) {
	bad, first, message := 0, 0, ""
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		addr, err := parseHostAddr(e.Addresses[0])
		if err == nil && FamilyOf(addr) != x.family {
			err = fmt.Errorf("%s is not an %s address", addr, x.family)
		}
		if err != nil {
			if bad++; bad == 1 {
				first, message = i, err.Error()
			}
			continue
		}
		x.named = append(x.named, backendOf(e, addr))
	}
	if bad > 1 {
		message = fmt.Sprintf("%s (and %d more endpoints like it)", message, bad-1)
	}
	if bad > 0 {
		x.problem(fmt.Sprintf("endpoints[%d].addresses[0]", first), "%s", message)
	}
}

// backendOf reads conditions by the contract of EndpointConditions: nil is true for ready and
// serving, false for terminating.
func backendOf(e *discoveryv1.Endpoint, addr netip.Addr) Backend {
	c := &e.Conditions
	b := Backend{
		Addr: addr, Node: deref(e.NodeName), Zone: deref(e.Zone),
		Ready:       c.Ready == nil || *c.Ready,
		Serving:     c.Serving == nil || *c.Serving,
		Terminating: c.Terminating != nil && *c.Terminating,
	}
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			b.ForZones = append(b.ForZones, z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			b.ForNodes = append(b.ForNodes, n.Name)
		}
	}
	return b
}

// deref returns what s points to, or the zero value.
func deref[T any](s *T) T {
	if s == nil {
		var zero T
		return zero
	}
	return *s
}
