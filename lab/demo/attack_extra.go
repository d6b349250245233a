package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/cluster"
	"hairpin/lab/attack"
)

const byRanges = "port security of the pod's logical port: its Namespace does not allow the address"

// extraAttacks are those of a pod that asks for addresses besides its own.
func extraAttacks() []Attack {
	var list []Attack
	for _, f := range families() {
		list = append(list, Attack{Who: attacker, What: "sends IPv" + f.name + " from a further address that it asked for and may not have, to its neighbour", By: byRanges,
			try: func(ctx context.Context, w *world) (outcome, error) { return w.furtherAddress(ctx, f) }})
	}
	return list
}

// furtherAddress lets a pod ask for two addresses, of which its Namespace allows one. Honest are packets from that one.
func (w *world) furtherAddress(ctx context.Context, f family) (out outcome, err error) {
	subnet := w.gateway(f).AsSlice()
	at := func(last byte) netip.Addr {
		subnet[len(subnet)-1] = last
		a, _ := netip.AddrFromSlice(subnet)
		return a
	}
	allowed, other := at(200), at(250)
	bits := allowed.BitLen() - 5
	undo, err := w.annotate(ctx, "Namespace", metav1.NamespaceDefault, cluster.AnnotationExtraRanges, netip.PrefixFrom(allowed, bits).Masked().String())
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	forget, err := w.annotate(ctx, "Pod", attacker, cluster.AnnotationExtraAddresses, allowed.String()+", "+other.String())
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, forget()) }()

	from, target := w.endpoints[attacker], w.endpoints[neighbour]
	ear, err := attack.ListenUDP(target.place, 0)
	if err != nil {
		return outcome{}, err
	}
	defer ear.Close()
	mac, err := attack.MAC(from.place, podLink)
	if err != nil {
		return outcome{}, err
	}
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
	return refusedWith("from %s, which its Namespace does not allow, nothing arrived; from %s, which it allows, packets did", other, allowed), nil
}

// annotate writes an annotation, as somebody who may change the object. What it returns removes it again.
func (w *world) annotate(ctx context.Context, kind, name, annotation, value string) (undo func() error, err error) {
	if w.client == nil {
		return w.annotateFile(kind, name, annotation, value)
	}
	patch := func(ctx context.Context, value any) error {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotation: value}}})
		if err != nil {
			return err
		}
		core := w.client.CoreV1()
		switch kind {
		case "Namespace":
			_, err = core.Namespaces().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
		case "Pod":
			_, err = core.Pods(metav1.NamespaceDefault).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
		default:
			err = fmt.Errorf("no attack annotates a %s", kind)
		}
		return err
	}
	return func() error { return patch(context.WithoutCancel(ctx), nil) }, patch(ctx, value)
}

// annotateFile is annotate without an API. The manifests have no Namespace.
func (w *world) annotateFile(kind, name, annotation, value string) (undo func() error, err error) {
	line := fmt.Sprintf("annotations: {%s: %q}", annotation, value)
	if kind == "Namespace" {
		o := object{TypeMeta: metav1.TypeMeta{Kind: kind}, ObjectMeta: metav1.ObjectMeta{Name: name}}
		return w.putFile(&o, fmt.Sprintf("apiVersion: v1\nkind: %s\nmetadata:\n  name: %s\n  %s\n", kind, name, line))
	}
	file := filepath.Join(manifestsOf(w.lab), "pods.yaml")
	before, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	write := func(text string) error {
		return errors.Join(os.WriteFile(file+".new", []byte(text), 0o644), os.Rename(file+".new", file))
	}
	named := "  name: " + name + "\n"
	if !strings.Contains(string(before), named) {
		return nil, fmt.Errorf("%s has no %s %s", file, kind, name)
	}
	return func() error { return write(string(before)) }, write(strings.Replace(string(before), named, named+"  "+line+"\n", 1))
}
