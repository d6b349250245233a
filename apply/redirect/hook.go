package redirect

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/claims"
)

// hook is a kind of attachment of programs to links' ingress.
type hook interface {
	// programs lists the programs at a link, Hairpin's and others', in their order of execution.
	programs(index int) ([]ebpf.ProgramID, error)
	// attach attaches a program to a link. It replaces another one if that is not nil.
	attach(index int, p *ebpf.Program, in *attached) error
	detach(attached) error
}

// tcx is the kernel's own list of programs (Linux 6.6).
type tcx struct{}

func (tcx) supported() bool {
	_, err := tcx{}.programs(1)
	return err == nil
}

func (tcx) programs(index int) ([]ebpf.ProgramID, error) {
	list, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil, err
	}
	var ids []ebpf.ProgramID
	for _, p := range list.Programs {
		ids = append(ids, p.ID)
	}
	return ids, nil
}

func (tcx) attach(index int, p *ebpf.Program, in *attached) error {
	opts := link.RawAttachProgramOptions{Target: index, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()}
	if in != nil {
		old, err := ebpf.NewProgramFromID(in.id)
		if err != nil {
			return fmt.Errorf("program %d: %w", in.id, err)
		}
		defer func() { _ = old.Close() }()
		opts.Anchor = link.ReplaceProgram(old)
	}
	return link.RawAttachProgram(opts)
}

func (tcx) detach(a attached) error {
	p, err := ebpf.NewProgramFromID(a.id)
	if errors.Is(err, unix.ENOENT) {
		return nil // another program detached it
	} else if err != nil {
		return fmt.Errorf("program %d: %w", a.id, err)
	}
	defer func() { _ = p.Close() }()
	err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: a.index, Program: p,
		Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// clsact is a queueing discipline that only has filters. It stays when Hairpin's filter is removed,
// because others may have filters there.
type clsact struct{}

func (clsact) programs(index int) ([]ebpf.ProgramID, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, err
	}
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // no such discipline
		return nil, err
	}
	var ids []ebpf.ProgramID
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Id != 0 && b.Handle == claims.FilterHandle &&
			b.Priority == claims.FilterPriority {
			ids = append(ids, ebpf.ProgramID(b.Id))
		}
	}
	return ids, nil
}

func (clsact) attach(index int, p *ebpf.Program, _ *attached) error {
	q := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0),
			Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact",
	}
	if err := netlink.QdiscAdd(q); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("clsact: %w", err)
	}
	f := filter(index)
	f.Fd, f.DirectAction = p.FD(), true
	f.Name = claims.NFTTable // only shown, by tc(8)
	if err := netlink.FilterReplace(f); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	return nil
}

func (clsact) detach(a attached) error {
	if err := netlink.FilterDel(filter(a.index)); err != nil && !errors.Is(err, unix.ENOENT) &&
		!errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("filter: %w", err)
	}
	return nil
}

func filter(index int) *netlink.BpfFilter {
	return &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: claims.FilterHandle,
		Priority: claims.FilterPriority, Protocol: unix.ETH_P_ALL,
	}}
}

// attached is a program of Hairpin's at a link.
type attached struct {
	link  string
	index int
	id    ebpf.ProgramID
	name  string
	tag   string
	maps  map[string]ebpf.MapID
}

// find lists Hairpin's programs at all links.
func (t *Target) find() ([]attached, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	var list []attached
	for _, l := range links {
		ids, err := t.hook.programs(l.Index)
		// The link is gone, or the process has no permission to query and so attached no programs.
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("programs of %s: %w", l.Name, err)
		}
		for _, id := range ids {
			a := attached{link: l.Name, index: l.Index, id: id}
			if ours, err := a.query(); err != nil {
				return nil, fmt.Errorf("program %d of %s: %w", id, l.Name, err)
			} else if ours {
				list = append(list, a)
			}
		}
	}
	return list, nil
}

// query asks the kernel about a program, and reports whether it is Hairpin's.
func (a *attached) query() (ours bool, err error) {
	p, err := ebpf.NewProgramFromID(a.id)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return false, err
	}
	if a.name, a.tag = info.Name, info.Tag; a.name != claims.ProgramRequest && a.name != claims.ProgramReply {
		return false, nil
	}
	ids, _ := info.MapIDs()
	a.maps = map[string]ebpf.MapID{}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false, err
		}
		mapInfo, err := m.Info()
		_ = m.Close()
		if err != nil {
			return false, err
		}
		a.maps[mapInfo.Name] = id
	}
	return a.maps[claims.MapServices] != 0, nil
}
