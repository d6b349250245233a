package demo

import (
	"context"
	"errors"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster/annotation"
	"hairpin/lab/attack"
)

const byRanges = byPortSecurity + "; its Namespace does not allow the address"

// extraAttacks returns attacks of a pod that requests addresses besides its own.
func extraAttacks() []Attack {
	var list []Attack
	for _, f := range families() {
		list = append(list, Attack{Who: attacker, What: "sends IPv" + f.name +
			" from a further address that it requested and may not have, to another pod", By: byRanges,
			try: func(ctx context.Context, w *world) (outcome, error) { return w.furtherAddress(ctx, f) }})
	}
	return list
}

// furtherAddress makes a pod request two addresses, of which its Namespace allows one. Packets from
// that one are legitimate.
func (w *world) furtherAddress(ctx context.Context, f family) (out outcome, err error) {
	subnet := w.gateway(f).AsSlice()
	at := func(last byte) netip.Addr {
		subnet[len(subnet)-1] = last
		a, _ := netip.AddrFromSlice(subnet)
		return a
	}
	allowed, other := at(200), at(250)
	bits := allowed.BitLen() - 5
	undo, err := w.annotate(ctx, "Namespace", metav1.NamespaceDefault, annotation.ExtraRanges,
		netip.PrefixFrom(allowed, bits).Masked().String())
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	forget, err := w.annotate(ctx, "Pod", attacker, annotation.ExtraAddresses, allowed.String()+", "+
		other.String())
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, forget()) }()

	from, target := w.endpoints[attacker], w.endpoints[neighbour]
	ear, mac, err := w.facing(target)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	next, err := attack.MAC(target.place, podLink)
	if err != nil {
		return outcome{}, err
	}
	to := netip.AddrPortFrom(target.address(f), ear.Port)
	datagram := func(src netip.Addr) func([]byte) []byte {
		return func(mark []byte) []byte {
			return attack.Frame(mac, next, attack.UDP(netip.AddrPortFrom(src, 40000), to, mark))
		}
	}
	if out, err = w.beside(ctx, from.place, ear, datagram(allowed), datagram(other)); err != nil || out.taken {
		return out, err
	}
	return refusedWith("from %s, which its Namespace does not allow, nothing arrived; from %s, which it "+
		"allows, packets did", other, allowed), nil
}

// annotate writes an annotation, as a user who may change the object. undo removes it again.
func (w *world) annotate(ctx context.Context, kind, name, annotation, value string) (undo func() error, err error) {
	set := func(ctx context.Context, value any) error {
		return w.objects.set(ctx, kind, name, annotationsField, annotation, value)
	}
	return func() error { return set(context.WithoutCancel(ctx), nil) }, set(ctx, value)
}
