package parse

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"hairpin/cluster"
)

// FieldServiceName is the label that names a slice's Service.
const FieldServiceName = "metadata.labels[" + discoveryv1.LabelServiceName + "]"

// Slice is one EndpointSlice.
type Slice struct {
	Owner   cluster.Owner
	Service cluster.Owner // zero: none
	// ServiceUID is the UID of the Service that the slice was made for; empty: unknown, as of one
	// made by hand. Slices of a Service that was deleted and created again may remain for seconds.
	ServiceUID string
	// Dependent means that Kubernetes deletes the slice after its Service, which takes seconds.
	Dependent bool
	Family    cluster.Family // 0: of host names, which are not served
	Triggered time.Time
	Ports     []SlicePort
	Endpoints []cluster.Backend // without ports
	Problems  cluster.Problems
}

// SlicePort is a port of a Slice.
type SlicePort struct {
	Name     string
	Protocol cluster.Protocol
	Port     uint16
}

func (x *Slice) problem(field, format string, args ...any) {
	x.Problems.Add(x.Owner, field, format, args...)
}

// EndpointSlice returns the ports and endpoints of one EndpointSlice, and its problems.
func EndpointSlice(o *discoveryv1.EndpointSlice) Slice {
	x := Slice{Owner: Owner(o)}
	if ignored(o.Labels) {
		return x
	}
	if name := o.Labels[discoveryv1.LabelServiceName]; name != "" {
		x.Service = cluster.Owner{Kind: "Service", Namespace: o.Namespace, Name: name}
		for _, r := range o.OwnerReferences {
			if r.Kind == "Service" && r.Name == name {
				x.ServiceUID = string(r.UID)
			}
			x.Dependent = x.Dependent || r.Name == name && (r.Kind == "Service" || r.Kind == "Endpoints")
		}
	} else {
		x.problem(FieldServiceName, "names no Service, so the slice serves none")
	}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4:
		x.Family = cluster.IPv4
	case discoveryv1.AddressTypeIPv6:
		x.Family = cluster.IPv6
	case discoveryv1.AddressTypeFQDN:
		return x
	default:
		x.problem("addressType", "%q is not an address type (IPv4, IPv6, FQDN)", o.AddressType)
		return x
	}
	if t, err := time.Parse(time.RFC3339Nano, o.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		x.Triggered = t.UTC()
	}
	x.parsePorts(o)
	x.parseEndpoints(o)
	return x
}

// parsePorts omits ports without a number, which mean "all ports" and are not for Services.
func (x *Slice) parsePorts(o *discoveryv1.EndpointSlice) {
	for i := range o.Ports {
		p := &o.Ports[i]
		if p.Port == nil {
			continue
		}
		protocol, err := cluster.ParseProtocol(deref(p.Protocol))
		switch {
		case err != nil:
			x.problem(fmt.Sprintf("ports[%d].protocol", i), "%v", err)
		case *p.Port < 1 || *p.Port > 65535:
			x.problem(fmt.Sprintf("ports[%d].port", i), "%d is not a port number (1 to 65535)", *p.Port)
		default:
			x.Ports = append(x.Ports, SlicePort{deref(p.Name), protocol, uint16(*p.Port)})
		}
	}
}

// parseEndpoints reports only the first invalid address: a slice has up to a thousand.
func (x *Slice) parseEndpoints(o *discoveryv1.EndpointSlice) {
	bad, first, message := 0, 0, ""
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		addr, err := cluster.ParseHostAddr(e.Addresses[0])
		if err == nil && cluster.FamilyOf(addr) != x.Family {
			err = fmt.Errorf("%s is not an %s address", addr, x.Family)
		}
		if err != nil {
			if bad++; bad == 1 {
				first, message = i, err.Error()
			}
			continue
		}
		x.Endpoints = append(x.Endpoints, backendOf(e, addr))
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
func backendOf(e *discoveryv1.Endpoint, addr netip.Addr) cluster.Backend {
	c := &e.Conditions
	b := cluster.Backend{
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
