declare const htm: {
  bind<Result>(h: (...args: any[]) => Result): (strings: TemplateStringsArray, ...values: unknown[]) => Result;
};
export default htm;
