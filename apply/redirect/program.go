package redirect

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
)

// Verdicts of a program at a device's ingress.
const (
	next       = -1 // TCX_NEXT and TC_ACT_UNSPEC: continue as without the program
	redirected = 7  // TC_ACT_REDIRECT
)

// Counters, by their index in claims.MapCounters.
const (
	countRequests = iota
	countReplies
	countFragments
	countNoRoute
	counters
)

// Fields of struct __sk_buff (linux/bpf.h).
const (
	skbLength      = 0 // with the frame's header
	skbPacketType  = 4
	skbProtocol    = 16
	skbVLANPresent = 20
	skbIfindex     = 40
	skbSegmentSize = 176 // gso_size; 0 for a packet that is not a GSO packet
)

// Fields of struct bpf_fib_lookup (linux/bpf.h), which has fibSize bytes, and of struct
// bpf_redir_neigh.
const (
	fibIfindex = 8
	fibSrc     = 16
	fibDst     = 32
	fibSize    = 64

	neighAddress = 4
	neighSize    = 20
)

// Results of bpf_fib_lookup (linux/bpf.h).
const (
	fibSuccess     = 0
	fibNoNeighbour = 7
)

// The stack: offsets from the frame pointer.
const (
	onKey    = -24          // a key of claims.MapServices
	onPort   = onKey + 16   // of the key
	onProto  = onKey + 18   // of the key
	onFamily = onKey + 19   // of the key
	onHeader = onKey - 40   // an IP header, without options
	onL4     = onHeader - 8 // ports; type and code of ICMP; or the start of an extension header
	onIndex  = onL4 - 8     // an index of an array
	onFIB    = onIndex - 64 // a struct bpf_fib_lookup
	onNeigh  = onFIB - 24   // a struct bpf_redir_neigh
	onTuple  = onNeigh - 40 // a struct bpf_sock_tuple
	onOpts   = onTuple - 16 // a struct bpf_ct_opts
)

// Sizes in bytes.
const (
	ethernet = 14    // a frame's header
	macs     = 2 * 6 // its MACs, which come first
	keySize  = onFamily - onKey + 1
)

// Address families in keys.
const (
	family4 = 4
	family6 = 6
)

// Registers that calls preserve.
const (
	rContext = asm.R6
	rIP      = asm.R7 // offset of the IP header
	rL4      = asm.R8 // offset of the header after it
	rProto   = asm.R9 // protocol of that header
)

// Labels.
const (
	labelPass     = "pass"     // leave the packet to the host
	labelFragment = "fragment" // the same, and count it
	labelLook     = "look"     // the struct for the FIB lookup is complete
	labelFound    = "found"    // the packet is for a Service, its value is at onIndex
)

const license = "GPL" // bpf_redirect_neigh and bpf_skb_ct_lookup need it

// programs returns both programs. This request program makes no conntrack lookup.
func programs() map[string]*ebpf.ProgramSpec {
	list := map[string]*ebpf.ProgramSpec{}
	for name, code := range map[string]asm.Instructions{claims.ProgramRequest: request(nil),
		claims.ProgramReply: reply()} {
		list[name] = &ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, Instructions: code, License: license}
	}
	return list
}

// request is the program at a NIC's ingress. It redirects packets to this machine and a Service to
// the egress of the gateway bridge, with the MACs of the Service's target. The source is the dummy
// next hop or claims.RedirectMAC, the destination the gateway router. No checksum covers them. It
// leaves to the host packets that a router answers with an ICMP error (too long for pods, or
// expired), and replies to the node's own connections.
func request(ct *conntrack) asm.Instructions {
	c := &code{conntrack: ct}
	c.add(
		asm.Mov.Reg(rContext, asm.R1),
		// packets for a VLAN's own link
		asm.LoadMem(asm.R2, rContext, skbVLANPresent, asm.Word), asm.JNE.Imm(asm.R2, 0, labelPass),
		asm.LoadMem(asm.R2, rContext, skbPacketType, asm.Word), asm.JNE.Imm(asm.R2, unix.PACKET_HOST, labelPass),
	)
	c.find()
	c.lookup(claims.MapTarget, onIndex, labelPass)
	// From here, rIP points to the target and rL4 is its link.
	c.add(
		asm.LoadMem(rL4, asm.R0, targetLink, asm.Word), asm.JEq.Imm(rL4, 0, labelPass), asm.Mov.Reg(rIP, asm.R0),
		asm.LoadMem(asm.R2, rIP, targetMTU, asm.Word), asm.Add.Imm(asm.R2, ethernet),
		asm.LoadMem(asm.R3, rContext, skbLength, asm.Word),
		asm.JGE.Reg(asm.R2, asm.R3, "fits"), asm.LoadMem(asm.R2, rContext, skbSegmentSize, asm.Word),
		asm.JEq.Imm(asm.R2, 0, labelPass),
	)
	c.at("fits")
	c.add(
		asm.Mov.Reg(asm.R1, rContext), asm.Mov.Imm(asm.R2, 0), asm.Mov.Reg(asm.R3, rIP),
		asm.Add.Imm(asm.R3, targetMACs), asm.Mov.Imm(asm.R4, macs), asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(), asm.JNE.Imm(asm.R0, 0, labelPass),
	)
	c.count(countRequests)
	c.add(asm.Mov.Reg(asm.R1, rL4), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return())
	c.at(labelFragment)
	c.count(countFragments)
	c.finish()
	return c.list
}

// reply is the program at the gateway bridge's ingress. The bridge sends the gateway router's
// replies, including fragments and ICMP errors, with the source claims.RedirectMAC. The program
// sends them by the link and the next hop of the host's routes and rules. The kernel resolves the
// neighbour as for its own packets.
func reply() asm.Instructions {
	c := &code{}
	c.add(
		asm.Mov.Reg(rContext, asm.R1), asm.LoadMem(asm.R2, rContext, skbPacketType, asm.Word),
		asm.JNE.Imm(asm.R2, unix.PACKET_HOST, labelPass),
		asm.Mov.Imm(rIP, macs/2), // first, the offset of the source MAC
	)
	c.load(rIP, onL4, macs/2)
	sender := macOf(claims.RedirectMAC)
	c.add(
		asm.LoadMem(asm.R2, asm.RFP, onL4, asm.Word),
		asm.JNE.Imm32(asm.R2, int32(binary.NativeEndian.Uint32(sender[:])), labelPass),
		asm.LoadMem(asm.R2, asm.RFP, onL4+4, asm.Half),
		asm.JNE.Imm32(asm.R2, int32(binary.NativeEndian.Uint16(sender[4:])), labelPass),
		asm.Mov.Imm(rIP, ethernet),
	)
	c.zero(onFIB, fibSize)
	c.add(
		asm.LoadMem(asm.R2, rContext, skbIfindex, asm.Word), asm.StoreMem(asm.RFP, onFIB+fibIfindex, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, rContext, skbProtocol, asm.Word),
		asm.JEq.Imm(asm.R2, inOrder(unix.ETH_P_IP), "ipv4"), asm.JNE.Imm(asm.R2, inOrder(unix.ETH_P_IPV6), labelPass),
		asm.StoreImm(asm.RFP, onFIB, unix.AF_INET6, asm.Byte),
	)
	c.load(rIP, onHeader, 40)
	c.copy(onFIB+fibSrc, onHeader+8, 16)
	c.copy(onFIB+fibDst, onHeader+24, 16)
	c.add(asm.Ja.Label(labelLook))
	c.at("ipv4")
	c.add(asm.StoreImm(asm.RFP, onFIB, unix.AF_INET, asm.Byte))
	c.load(rIP, onHeader, 20)
	c.copy(onFIB+fibSrc, onHeader+12, 4)
	c.copy(onFIB+fibDst, onHeader+16, 4)
	c.at(labelLook)
	c.add(
		asm.Mov.Reg(asm.R1, rContext), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, onFIB),
		asm.Mov.Imm(asm.R3, fibSize), asm.Mov.Imm(asm.R4, 0),
		asm.FnFibLookup.Call(), asm.JEq.Imm(asm.R0, fibSuccess, "out"), asm.JEq.Imm(asm.R0, fibNoNeighbour, "out"),
	)
	c.count(countNoRoute)
	c.add(asm.Ja.Label(labelPass))
	c.at("out")
	// The next hop may have another address family than the packet.
	c.add(asm.LoadMem(asm.R2, asm.RFP, onFIB, asm.Byte), asm.StoreMem(asm.RFP, onNeigh, asm.R2, asm.Word))
	c.copy(onNeigh+neighAddress, onFIB+fibDst, 16)
	c.count(countReplies)
	c.add(
		asm.LoadMem(asm.R1, asm.RFP, onFIB+fibIfindex, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, onNeigh), asm.Mov.Imm(asm.R3, neighSize),
		asm.Mov.Imm(asm.R4, 0), asm.FnRedirectNeigh.Call(), asm.Return(),
	)
	c.finish()
	return c.list
}

// find continues only for packets to a Service. An ICMP error contains the packet that caused it,
// whose source port is the Service's. The error's own destination is the Service's address.
func (c *code) find() {
	c.add(
		asm.Mov.Imm(rIP, ethernet), asm.LoadMem(asm.R2, rContext, skbProtocol, asm.Word),
		asm.JEq.Imm(asm.R2, inOrder(unix.ETH_P_IP), "ipv4"), asm.JNE.Imm(asm.R2, inOrder(unix.ETH_P_IPV6), labelPass),
	)
	c.header6(labelFragment)
	c.alive(7)
	c.copy(onKey, onHeader+24, 16)
	c.add(asm.JEq.Imm(rProto, unix.IPPROTO_ICMPV6, "icmp6"))
	c.service(portDst, family6)

	c.at("ipv4")
	c.header4(labelFragment)
	c.alive(8)
	c.zero(onKey, 8)
	c.add(asm.StoreImm(asm.RFP, onKey+8, 0, asm.Half), asm.StoreImm(asm.RFP, onKey+10, -1, asm.Half)) // ::ffff:0:0
	c.copy(onKey+12, onHeader+16, 4)
	c.add(asm.JEq.Imm(rProto, unix.IPPROTO_ICMP, "icmp4"))
	c.service(portDst, family4)

	// The error types of RFC 792 and RFC 4443. Eight bytes precede the contained packet.
	c.at("icmp4")
	c.load(rL4, onL4, 4)
	c.add(asm.LoadMem(asm.R2, asm.RFP, onL4, asm.Byte), asm.JEq.Imm(asm.R2, 3, "error4"),
		asm.JEq.Imm(asm.R2, 11, "error4"), asm.JNE.Imm(asm.R2, 12, labelPass))
	c.at("error4")
	c.add(asm.Mov.Reg(rIP, rL4), asm.Add.Imm(rIP, 8))
	c.header4(labelPass)
	c.service(portSrc, family4)

	c.at("icmp6")
	c.load(rL4, onL4, 4)
	c.add(asm.LoadMem(asm.R2, asm.RFP, onL4, asm.Byte), asm.JEq.Imm(asm.R2, 0, labelPass),
		asm.JGT.Imm(asm.R2, 4, labelPass), asm.Mov.Reg(rIP, rL4), asm.Add.Imm(rIP, 8))
	c.header6(labelPass)
	c.service(portSrc, family6)
	c.at(labelFound)
}

// alive continues only for a packet that a router may forward.
func (c *code) alive(ttl int16) {
	c.add(asm.LoadMem(asm.R2, asm.RFP, onHeader+ttl, asm.Byte), asm.JLT.Imm(asm.R2, 2, labelPass))
}

// header4 parses an IPv4 header and skips its options.
func (c *code) header4(fragment string) {
	c.load(rIP, onHeader, 20)
	c.add(
		asm.LoadMem(rL4, asm.RFP, onHeader, asm.Byte), asm.Mov.Reg(asm.R2, rL4), asm.RSh.Imm(asm.R2, 4),
		asm.JNE.Imm(asm.R2, 4, labelPass),
		asm.And.Imm(rL4, 0xf), asm.JLT.Imm(rL4, 5, labelPass), asm.LSh.Imm(rL4, 2), asm.Add.Reg(rL4, rIP),
		// More fragments, or an offset.
		asm.LoadMem(asm.R2, asm.RFP, onHeader+6, asm.Half), asm.And.Imm(asm.R2, inOrder(0x3fff)),
		asm.JNE.Imm(asm.R2, 0, fragment),
		asm.LoadMem(rProto, asm.RFP, onHeader+9, asm.Byte),
	)
}

// extensions is the maximum number of IPv6 extension headers to skip.
const extensions = 3

// header6 parses an IPv6 header and skips Hop-by-Hop and Destination Options headers. Packets with
// other extension headers are not redirected.
func (c *code) header6(fragment string) {
	c.load(rIP, onHeader, 40)
	c.add(asm.LoadMem(rProto, asm.RFP, onHeader+6, asm.Byte), asm.Mov.Reg(rL4, rIP), asm.Add.Imm(rL4, 40))
	done := c.unique("upper")
	for range extensions {
		step := c.unique("extension")
		c.add(
			asm.JEq.Imm(rProto, unix.IPPROTO_FRAGMENT, fragment), asm.JEq.Imm(rProto, unix.IPPROTO_HOPOPTS, step),
			asm.JNE.Imm(rProto, unix.IPPROTO_DSTOPTS, done),
		)
		c.at(step)
		c.load(rL4, onL4, 2)
		c.add(
			asm.LoadMem(rProto, asm.RFP, onL4, asm.Byte), asm.LoadMem(asm.R2, asm.RFP, onL4+1, asm.Byte),
			asm.Add.Imm(asm.R2, 1), asm.LSh.Imm(asm.R2, 3), asm.Add.Reg(rL4, asm.R2),
		)
	}
	c.add(asm.JEq.Imm(rProto, unix.IPPROTO_FRAGMENT, fragment))
	c.at(done)
}

// Offsets of the ports in the three protocols of Services.
const (
	portSrc = 0
	portDst = 2
)

// service completes the key and continues at labelFound.
func (c *code) service(at int16, family int64) {
	ok := c.unique("ports")
	c.add(asm.JEq.Imm(rProto, int32(cluster.TCP), ok), asm.JEq.Imm(rProto, int32(cluster.UDP), ok),
		asm.JNE.Imm(rProto, int32(cluster.SCTP), labelPass))
	c.at(ok)
	c.load(rL4, onL4, 4)
	c.add(
		asm.LoadMem(asm.R2, asm.RFP, onL4+at, asm.Half), asm.StoreMem(asm.RFP, onPort, asm.R2, asm.Half),
		asm.StoreMem(asm.RFP, onProto, rProto, asm.Byte), asm.StoreImm(asm.RFP, onFamily, family, asm.Byte),
	)
	c.lookup(claims.MapServices, onKey, labelPass)
	c.add(asm.LoadMem(asm.R2, asm.R0, 0, asm.Word), asm.StoreMem(asm.RFP, onIndex, asm.R2, asm.Word))
	c.passReplies(at, family)
	c.add(asm.Ja.Label(labelFound))
}

// code is a program under construction.
type code struct {
	list      asm.Instructions
	label     string // of the next instruction
	labels    int
	conntrack *conntrack // nil: no lookups
}

func (c *code) add(list ...asm.Instruction) {
	for _, i := range list {
		if c.label != "" {
			i, c.label = i.WithSymbol(c.label), ""
		}
		c.list = append(c.list, i)
	}
}

// at sets the label of the next instruction. It may overwrite R0.
func (c *code) at(label string) {
	if c.label != "" {
		c.add(asm.Mov.Imm(asm.R0, 0)) // for the previous label
	}
	c.label = label
}

// unique returns a unique label.
func (c *code) unique(label string) string {
	c.labels++
	return fmt.Sprintf("%s-%d", label, c.labels)
}

// load copies bytes of the packet to the stack. It leaves a shorter packet to the host.
func (c *code) load(offset asm.Register, to int16, size int32) {
	c.add(
		asm.Mov.Reg(asm.R1, rContext), asm.Mov.Reg(asm.R2, offset), asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, int32(to)), asm.Mov.Imm(asm.R4, size),
		asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, labelPass),
	)
}

// copy copies bytes on the stack, a multiple of four.
func (c *code) copy(to, from, size int16) {
	for i := int16(0); i < size; i += 4 {
		c.add(asm.LoadMem(asm.R2, asm.RFP, from+i, asm.Word), asm.StoreMem(asm.RFP, to+i, asm.R2, asm.Word))
	}
}

// zero clears bytes on the stack, a multiple of four.
func (c *code) zero(at, size int16) {
	for i := int16(0); i < size; i += 4 {
		c.add(asm.StoreImm(asm.RFP, at+i, 0, asm.Word))
	}
}

// lookup looks up a key on the stack; R0 then points to the value.
func (c *code) lookup(name string, key int32, missing string) {
	c.add(asm.LoadMapPtr(asm.R1, 0).WithReference(name), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, missing))
}

// count adds one to a counter of this CPU.
func (c *code) count(counter int64) {
	done := c.unique("counted")
	c.add(asm.StoreImm(asm.RFP, onIndex, counter, asm.Word))
	c.lookup(claims.MapCounters, onIndex, done)
	c.add(asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord))
	c.at(done)
}

// finish ends the program: packets that get here are left to the host.
func (c *code) finish() {
	c.at(labelPass)
	c.add(asm.Mov.Imm(asm.R0, next), asm.Return())
}

// inOrder returns a 16-bit number in network byte order, as a program loads it from a packet.
func inOrder(v uint16) int32 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return int32(binary.NativeEndian.Uint16(b[:]))
}
