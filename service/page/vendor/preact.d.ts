// The part of preact that this page uses. Markup is written with htm, whose templates no checker reads.
export interface VNode { readonly type: unknown; }
export type Child = VNode | string | number | boolean | null | undefined | Child[];
export function h(type: unknown, props: object | null, ...children: Child[]): VNode;
export function render(vnode: VNode | null, parent: Element): void;
export const Fragment: (props: { children?: Child }) => VNode;
